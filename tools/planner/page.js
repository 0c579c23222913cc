// The page: a change of a control changes the state, the state's request goes to the worker, and its response is shown. While the
// worker computes, only the newest request waits.

function workerOfPage() {
  const source = document.getElementById("planner").textContent;
  return new Worker(URL.createObjectURL(new Blob([source], {type: "text/javascript"})));
}

class Page {
  constructor(state) {
    this.state = state;
    this.report = null;
    this.is_busy = false;
    this.is_waiting = false;  // a newer request than the one that the worker computes
    this.form = document.getElementById("form");
    this.worker = workerOfPage();
    this.worker.onmessage = (event) => this.start(JSON.parse(event.data));
    this.worker.onerror = (event) => this.showError("this browser cannot run the planner: " + event.message);
    this.worker.postMessage(null);  // asks for the choices
  }

  start(choices) {
    if (choices.error) return this.showError(choices.error);
    kFields.find((field) => field.flag === "model").values = choices.models.map((name) => [name, name]);
    kFields.find((field) => field.flag === "machine").values = choices.machines.map((name) => [name, name]);
    buildForm(this.form, (flag, value) => this.change(flag, value), (name, text) => this.changeFile(name, text));
    this.worker.onmessage = (event) => this.receive(JSON.parse(event.data));
    this.update();
  }

  change(flag, value) {
    this.state.flags[flag] = value;
    if (flag === "min-gpus" && value) this.state.flags.ranks = "";
    if (flag === "min-gpus" && !value) this.state.flags.ranks = String(this.report ? this.report.ranks : kDefaultFlags.ranks);
    if (flag === "ranks" && value) this.state.flags["min-gpus"] = "";
    this.update();
  }

  changeFile(name, text) {
    this.state.files[name] = text;
    this.update();
  }

  setState(state) {
    this.state = state;
    this.update();
  }

  update() {
    showForm(this.form, this.state, this.report, (flag, value) => this.change(flag, value));
    document.getElementById("command").textContent = commandLine(this.state);
    history.replaceState(null, "", hashOf(this.state));
    if (this.is_busy) this.is_waiting = true;
    else this.send();
  }

  send() {
    this.is_busy = true;
    this.is_waiting = false;
    this.worker.postMessage(requestOf(this.state));
  }

  receive(response) {
    this.is_busy = false;
    if (this.is_waiting) return this.send();
    if (response.error) return this.showError(response.error);
    if (!response.plans) return this.showError("this page shows plans only; remove the flags below the controls");
    this.report = response;
    this.showError("");
    showForm(this.form, this.state, this.report, (flag, value) => this.change(flag, value));
    showReport(response);
    document.body.dataset.ready = "";
  }

  /// Shows the error, and the last plans as those of another request; "" for none.
  showError(text) {
    const line = document.getElementById("error");
    line.hidden = !text;
    line.textContent = text;
    document.getElementById("result").classList.toggle("stale", Boolean(text));
    if (text) document.body.dataset.ready = "";
  }
}

const page = new Page(startState());
addEventListener("hashchange", () => page.setState(stateOfHash(location.hash)));
document.getElementById("copy").addEventListener("click", () =>
  navigator.clipboard.writeText(document.getElementById("command").textContent));
