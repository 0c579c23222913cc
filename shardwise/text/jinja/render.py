"""Renders a chat template to the byte as transformers' apply_chat_template(tokenize=False) does.

module.cpp runs this file once in a Python without any caller's settings and calls `answer`: one JSON object in, one
out. A template comes from whoever published the model, so jinja2's sandbox runs it, on plain JSON values only.
"""
import datetime
import functools
import json
import traceback

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils

# Under any of these a message may hold its reasoning; templates read the first, some the second.
REASONING = ("reasoning_content", "thinking", "reasoning")


class Generation(jinja2.ext.Extension):
    """{% generation %} marks for training what the model itself writes: its body, rendered in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("whole"), [], [], body).set_lineno(line)

    def whole(self, caller):
        return caller()


class Dict:
    """`dict` for templates: what makes one, without the class and its attributes."""

    def __call__(self, *args, **fields):
        return dict(*args, **fields)

    def fromkeys(self, *args):
        return dict.fromkeys(*args)


class Namespace(jinja2.utils.Namespace):
    """`namespace` without names that begin with an underscore, Python's own."""

    def __init__(*args, **fields):
        self, *first = args
        values = dict(*first, **fields)
        for name in values:
            refuse_underscore(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        refuse_underscore(name)
        super().__setitem__(name, value)


def refuse_underscore(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace holds no name that begins with an underscore; got {name}")


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """Unlike jinja2's own, which writes for HTML pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime.now().strftime(format)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = to_json
    made.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, dict=Dict(), namespace=Namespace)
    return made


def seen(message):
    """A message as templates see it: no field that is null, and reasoning under the names that they read."""
    fields = {name: value for name, value in message.items() if value is not None}
    given = [fields[name] for name in REASONING if name in fields]
    return {"thinking": given[0], **fields, "reasoning_content": given[0]} if given else fields


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=16)
def compiled(template):
    return ENVIRONMENT.from_string(template)


def render(template, messages, tools, add_generation_prompt, variables):
    return compiled(template).render(
        messages=[seen(message) for message in messages], tools=tools, add_generation_prompt=add_generation_prompt,
        **{"documents": None, **variables})


def place(error):
    """"line 3, " when the template's line is known."""
    if isinstance(error, jinja2.exceptions.TemplateSyntaxError):
        return f"line {error.lineno}, "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return f"line {lines[-1]}, " if lines else ""


def answer(request):
    try:
        text = render(**json.loads(request))
        text.encode()  # half of a surrogate pair is no text
        return json.dumps({"text": text})
    except Exception as error:
        words = f"{place(error)}{type(error).__name__}: {error}"
        return json.dumps({"error": words.encode(errors="backslashreplace").decode()})
