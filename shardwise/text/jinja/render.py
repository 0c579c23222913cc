"""Renders chat templates byte for byte as transformers' apply_chat_template(tokenize=False) does.

module.cpp runs this file once in an isolated Python and calls `answer`: JSON object in, JSON object out. Templates are
untrusted, since they come with the model, so they run in jinja2's sandbox on plain JSON values only. module.cpp limits their
time and memory: it raises KeyboardInterrupt or MemoryError here.
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

# Arithmetic of integers is a single step, which nothing can interrupt: this many bits take no time.
MAX_INTEGER_BITS = 1 << 16

# Fields of a message that may contain its reasoning; templates read the first, some the second.
REASONING = ("reasoning_content", "thinking", "reasoning")


class Generation(jinja2.ext.Extension):
    """{% generation %}, which marks the assistant's text for training: renders its body in a new scope."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("render_body"), [], [], body).set_lineno(line)

    def render_body(self, caller):
        return caller()


class Dict:
    """`dict` for templates: its constructors without the class and its attributes."""

    def __call__(self, *args, **fields):
        return dict(*args, **fields)

    def fromkeys(self, *args):
        return dict.fromkeys(*args)


class Namespace(jinja2.utils.Namespace):
    """`namespace` without names that start with an underscore, which are Python's."""

    def __init__(*args, **fields):
        self, *first = args
        values = dict(*first, **fields)
        for name in values:
            reject_underscore(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        reject_underscore(name)
        super().__setitem__(name, value)


def reject_underscore(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"names in a namespace must not start with an underscore; got {name}")


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """The `tojson` filter without the HTML escapes of jinja2's."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime.now().strftime(format)


def bits(value):
    return value.bit_length() if isinstance(value, int) else 0


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2's sandbox, which also limits the size of integers, wherever a template could get a large one."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context, operator, left, right):
        size = bits(left) * max(right, 1) if operator == "**" and isinstance(right, int) else bits(left) + bits(right)
        if isinstance(left, int) and size > MAX_INTEGER_BITS:
            raise OverflowError(f"integers must have at most {MAX_INTEGER_BITS} bits")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj, attr, value):
        return attr != "from_bytes" and super().is_safe_attribute(obj, attr, value)


def bounded(to_integer):
    @functools.wraps(to_integer)
    def convert(*args, **fields):
        value = to_integer(*args, **fields)
        if bits(value) > MAX_INTEGER_BITS:
            raise OverflowError(f"integers must have at most {MAX_INTEGER_BITS} bits")
        return value

    return convert


def environment():
    env = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.filters["int"] = bounded(env.filters["int"])
    env.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, dict=Dict(), namespace=Namespace)
    return env


def normalized(message):
    """Removes null fields of a message and copies its reasoning to the fields that templates read."""
    fields = {name: value for name, value in message.items() if value is not None}
    reasoning = [fields[name] for name in REASONING if name in fields]
    return {"thinking": reasoning[0], **fields, "reasoning_content": reasoning[0]} if reasoning else fields


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=16)
def compiled(template):
    return ENVIRONMENT.from_string(template)


def render(template, messages, tools, add_generation_prompt, variables):
    return compiled(template).render(
        messages=[normalized(message) for message in messages], tools=tools, add_generation_prompt=add_generation_prompt,
        **{"documents": None, **variables})


def location(error):
    """Returns "line 3, " if the template's line is known, else ""."""
    if isinstance(error, jinja2.exceptions.TemplateSyntaxError):
        return f"line {error.lineno}, "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return f"line {lines[-1]}, " if lines else ""


def answer(request):
    try:
        text = render(**json.loads(request))
        text.encode()  # an unpaired surrogate is not valid text
        return json.dumps({"text": text})
    except MemoryError:
        raise
    except Exception as error:
        words = f"{location(error)}{type(error).__name__}: {error}"
        return json.dumps({"error": words.encode(errors="backslashreplace").decode()})
