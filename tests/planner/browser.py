"""Chromium without a window, by the DevTools protocol over a pipe: messages of JSON, each ended by a zero byte."""
import base64
import json
import os
import subprocess
import tempfile


class Browser:
    """One page. Every call waits for its reply; a browser that does not reply is ended by the caller's test runner."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory()
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec chromium --headless --no-sandbox --disable-gpu --remote-debugging-pipe "
             f"--user-data-dir={self._profile.name} 3<&{to_browser} 4>&{from_browser}"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._unread, self._id, self._session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._session = None
        self.call("Browser.close")  # a killed browser's own processes would go on writing to the profile
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def _read(self):
        while b"\0" not in self._unread:
            more = os.read(self._in, 1 << 16)
            if not more:
                raise EOFError("chromium has ended")
            self._unread += more
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        """Returns the result of a method of the protocol."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (reply := self._read()).get("id") != self._id:
            pass
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        return reply["result"]

    def evaluate(self, script):
        """Returns the value of a JavaScript expression, after awaiting it."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def show(self, width, height, scheme):
        """Sets the size of the page and light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        """Writes a PNG of the whole page."""
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(image))
