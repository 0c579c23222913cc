"""Rendered chats are byte-equal to transformers' for the same directory."""
import itertools
import json
import os
import subprocess
import tempfile
import unittest
from datetime import datetime
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from chats import CHATS, QUESTION, SYSTEM, TOOLS
from error_codes import without_code

PROGRAM = os.environ["SHARDWISE_PROGRAM"]
TOOL = os.environ["CHAT_TOOL"]
# Templates in the style of Llama 3.1, Qwen2.5, Qwen3, Mistral, Gemma and Zephyr, and one file per language feature.
TEMPLATES = sorted((Path(__file__).parent / "chat_templates").glob("*.jinja"))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# Variables besides the messages, for the templates that use them.
VARIABLES = {"enable_thinking": False, "tools_first": False, "date": "26 Jul 2024", "inbuilt": ["weather", "shell"]}
# The sandbox makes a forbidden attribute undefined, and rejects every use of an undefined value.
BLANKS = ["{{ ''.__class__ }}", "{{ '{0.__class__}'.format(1) }}", "{{ '{m.__class__}'.format_map({'m': 1}) }}",
          "{{ strftime_now.__globals__ }}"]
# Each is rejected by the sandbox, or by the replacements of `dict` and `namespace`.
ESCAPES = [
    "{{ ''.__class__.__name__ }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ ''['__class__'].__base__ }}",
    "{{ (''|attr('__class__')).__base__ }}", "{{ messages.append(1) }}", "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].pop('role') }}", "{{ messages.clear() }}",
    "{{ '{0.__class__.__name__}'.format(1) }}", "{{ raise_exception.__globals__['json'] }}", "{{ dict.__class__.__base__ }}", "{{ dict.__call__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}", "{{ cycler.__init__.__globals__.os }}", "{{ lipsum.__globals__.os }}",
    "{% set ns = namespace(__class__=1) %}", "{% set ns = namespace({'_a': 1}) %}",
    "{% set ns = namespace() %}{% set ns._a = 1 %}", "{{ self.__init__.__globals__ }}", "{{ range(10000000) | length }}",
    "{% macro m() %}{% endmacro %}{{ m.__call__.__globals__ }}", "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}", "{{ messages[0].__getattribute__('x') }}", "{{ joiner.__init__.__globals__ }}",
]


def theirs(tokenizer, messages, **options):
    """Returns transformers' text or error."""
    try:
        return {"text": tokenizer.apply_chat_template(messages, tokenize=False, **options)}
    except Exception as error:  # templates raise errors of every type
        return {"error": str(error)}


def ours(requests):
    """Renders requests, each (directory, messages, tools, prompt, variables), with shardwise."""
    lines = []
    for directory, messages, tools, prompt, variables in requests:
        request = {"directory": str(directory), "messages": messages, "add_generation_prompt": prompt, "variables": variables}
        lines.append(json.dumps(request | ({} if tools is None else {"tools": tools})))
    done = subprocess.run([TOOL], input="\n".join(lines), capture_output=True, text=True, timeout=300, check=True)
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


class ChatTemplateTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="shardwise-chat-")
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)

    def directory(self, name="model", files={}, **config):
        """Creates a model directory with a tokenizer of one word, and `files` by name."""
        directory = self.scratch / name
        directory.mkdir()
        Tokenizer(WordLevel({"word": 0}, unk_token="word")).save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        for path, text in files.items():
            (directory / path).parent.mkdir(exist_ok=True)
            (directory / path).write_bytes(text.encode())
        return directory

    def check_equal(self, requests, same_words=True):
        """Returns the number of rendered requests; both reject the others, shardwise with transformers' message in its own."""
        tokenizers, rendered = {}, 0
        answers = ours(requests)
        self.assertEqual(len(answers), len(requests))
        for request, answer in zip(requests, answers):
            directory, messages, tools, prompt, variables = request
            if directory not in tokenizers:
                tokenizers[directory] = PreTrainedTokenizerFast.from_pretrained(directory)
            expected = theirs(tokenizers[directory], messages, tools=tools, add_generation_prompt=prompt, **variables)
            with self.subTest(directory=directory.name, messages=messages, tools=bool(tools), prompt=prompt, variables=variables):
                if "text" in expected:
                    self.assertEqual(answer, expected)
                    rendered += 1
                else:
                    self.assertTrue(answer.get("error", "none").startswith(str(directory)), answer)
                    if same_words:
                        self.assertIn(" ".join(expected["error"].splitlines()), answer["error"])
        return rendered

    def check(self, directory, messages=(QUESTION,), tools=None, prompt=True, variables={}):
        """Renders one request, which both must accept, and returns the text."""
        self.assertEqual(self.check_equal([(directory, list(messages), tools, prompt, variables)]), 1)
        return ours([(directory, list(messages), tools, prompt, variables)])[0]["text"]

    def test_every_template_with_every_chat(self):
        self.assertGreater(len(TEMPLATES), 10)
        total = 0
        for path in TEMPLATES:
            text = path.read_text()
            directory = self.directory(path.stem, chat_template=text, **TOKENS)
            variables = [{}, VARIABLES] if any(name in text for name in VARIABLES) else [{}]
            requests = list(itertools.product([directory], CHATS.values(), [None, [], TOOLS], [False, True], variables))
            rendered = self.check_equal(requests)
            self.assertGreater(rendered, len(requests) // 5, f"{path.stem}: most chats are refused")
            total += rendered
        print(f"covered: {total} chats rendered as transformers renders them, by {len(TEMPLATES)} templates")

    def test_date_and_time(self):
        directory = self.directory(chat_template="{{ strftime_now('%d %b %Y, %A é %%') }}")
        before, text, after = datetime.now(), ours([(directory, [QUESTION], None, True, {})])[0]["text"], datetime.now()
        self.assertIn(text, [time.strftime("%d %b %Y, %A é %%") for time in (before, after)])

    def test_sources_of_templates(self):
        config, both = "from the config", [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
        jinja = {"chat_template.jinja": "from the file\n"}
        further = {"additional_chat_templates/tool_use.jinja": "for tools"}
        self.assertEqual(self.check(self.directory("1", chat_template=config)), config)
        self.assertEqual(self.check(self.directory("2", jinja, chat_template=config)), "from the file")
        self.assertEqual(self.check(self.directory("3", jinja)), "from the file")
        named = self.directory("4", chat_template=both)
        self.assertEqual([self.check(named), self.check(named, tools=[]), self.check(named, tools=TOOLS)], ["d", "t", "t"])
        split = self.directory("5", jinja | further, chat_template=both)
        self.assertEqual([self.check(split), self.check(split, tools=TOOLS)], ["from the file", "for tools"])
        self.assertEqual(self.check(self.directory("6", chat_template=both[:1]), tools=TOOLS), "d")
        self.assertEqual(self.check(self.directory("7", {"chat_template.jinja": "a\r\nb\rc{{ 'x\r\ny' }}\r\n"})), "a\nb\ncx\ny")
        self.assertEqual(self.check(self.directory("8", chat_template={"default": "o"})), "o")
        for name, directory in [("9", self.directory("9")), ("10", self.directory("10", chat_template=None)),
                             ("11", self.directory("11", chat_template=both[1:]))]:
            expected = theirs(PreTrainedTokenizerFast.from_pretrained(directory), [QUESTION])
            self.assertIn("error", expected)
            self.assertTrue(ours([(directory, [QUESTION], None, True, {})])[0]["error"].startswith(str(directory)), name)

    def test_special_tokens(self):
        def added(text):
            return {"__type": "AddedToken", "content": text, "lstrip": False, "normalized": False, "rstrip": False,
                    "single_word": False, "special": True}

        names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "own_token",
                 "image_token", "add_bos_token", "flag_token", "call"]
        template = "".join(f"{{{{ {name} is defined }}}} {{{{ {name} }}}}, " for name in names)
        spelled = {
            "none": {},
            "strings": dict(bos_token="<b>", eos_token="é", pad_token=None, add_bos_token=True, flag_token=["x"]),
            "objects": {name: added(f"<{name}>") for name in names[:9]},
            "own": dict(own_token="<own>", extra_special_tokens={"image_token": "<i>", "call": "<c>"}, bos_token="<b>"),
            "explicit": dict(own_token="<own>", model_specific_special_tokens={"call": "<c>", "own_token": "<2>"}),
            "list": dict(extra_special_tokens=["<x>"], additional_special_tokens=["<y>"], eos_token="<e>"),
        }
        older = {"special_tokens_map.json": json.dumps(
            {"bos_token": "<old b>", "unk_token": {"content": "<old u>", "lstrip": False, "normalized": False,
                                                   "rstrip": False, "single_word": False}, "own_token": "<old own>",
             "additional_special_tokens": ["<z>"]})}
        for name, config in spelled.items():
            self.check(self.directory(name, chat_template=template, **config))
            self.check(self.directory(name + " and older", older, chat_template=template, **config))
            self.check(self.directory(name + " newer", older, chat_template=template, added_tokens_decoder={}, **config))
        directory = self.directory("overridden", chat_template=template, **TOKENS)
        self.assertIn("True <mine>", self.check(directory, variables={"bos_token": "<mine>"}))

    def test_sandbox(self):
        for i, template in enumerate(BLANKS):
            self.assertEqual(self.check(self.directory(f"blank{i}", chat_template=template)), "", template)
        requests = [(self.directory(str(i), chat_template=template), [QUESTION, SYSTEM], None, True, {})
                    for i, template in enumerate(ESCAPES)]
        self.assertEqual(self.check_equal(requests, same_words=False), 0)
        for template, answer in zip(ESCAPES, ours(requests)):
            self.assertIn("the chat template must accept these messages", answer["error"], template)
        self.assertIn("SecurityError: access to attribute '__class__' of 'str' object is unsafe", ours(requests)[0]["error"])

    def test_invalid_templates(self):
        broken = ["{% if %}", "{{ messages", "{% unknown %}", "{{ 'a' | nofilter }}", "{% for m in messages %}", "{{ 1 / 0 }}",
                  "{{ messages.x.y }}", "{{ 'a' + 1 }}", "{{ unknown | tojson }}", "{{ nothing() }}", "{% generation %}",
                  "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% break %}",
                  "{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}"]
        requests = [(self.directory(str(i), chat_template=template), [QUESTION], None, True, {})
                    for i, template in enumerate(broken)]
        self.assertEqual(self.check_equal(requests), 0)

    def run_command(self, *arguments, messages):
        done = subprocess.run([PROGRAM, "chat-template", *map(str, arguments)], input=messages, capture_output=True, timeout=60)
        return done.returncode, done.stdout.decode(), without_code(done.stderr.decode())

    def test_command(self):
        path = next(path for path in TEMPLATES if path.stem == "thinking")
        directory = self.directory(chat_template=path.read_text(), **TOKENS)
        tools = self.scratch / "tools.json"
        tools.write_text(json.dumps(TOOLS))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        messages = json.dumps(CHATS["two calls"]).encode()
        for flags, options in [
            ([], dict(add_generation_prompt=True)), (["--no-generation-prompt"], dict(add_generation_prompt=False)),
            (["--tools", tools], dict(add_generation_prompt=True, tools=TOOLS)),
            (["--chat-template-kwargs", '{"enable_thinking": false}'], dict(add_generation_prompt=True, enable_thinking=False)),
        ]:
            expected = theirs(tokenizer, CHATS["two calls"], **options)["text"]
            self.assertEqual(self.run_command("--model", directory, *flags, messages=messages), (0, expected, ""))

    def test_numeric_variables(self):
        directory = self.directory(chat_template="{{ x }}")
        for x, rendered in (("18446744073709551615", "18446744073709551615"), ("1e30", "1e+30"), ("0.5", "0.5")):
            flags = ["--model", directory, "--chat-template-kwargs", f'{{"x": {x}}}']
            self.assertEqual(self.run_command(*flags, messages=b"[{}]"), (0, rendered, ""))
        flags[-1] = '{"x": -9223372036854775809}'
        self.assertEqual(self.run_command(*flags, messages=b"[{}]"), (
            2, "", "shardwise: chat-template: --chat-template-kwargs: integers must have at most 64 bits; got "
                   "-9223372036854775809\n"))

    def test_command_errors(self):
        directory = self.directory(chat_template="{{ raise_exception('No ' ~ messages[0].role ~ ' here') }}")
        lines = {
            (directory, b'[{"role": "user"}]'): f"{directory}/tokenizer_config.json: the chat template must accept these messages; "
                                             "got line 1, TemplateError: No user here",
            (directory, b"hello"): "standard input: must be JSON; got ",
            (directory, b"[]"): "chat template: messages must not be empty; got none",
            (directory, b'{"messages": []}'): 'chat template: messages must be a list; got {"messages":[]}',
            (directory, b'[{"x": 123456789012345678901}]'): "standard input: integers must have at most 64 bits; got "
                                                         "123456789012345678901",
            (directory, b"[1]"): "chat template: messages[0] must be an object; got 1",
            (self.directory("bare"), b"[{}]"): f"{self.scratch}/bare: must have a chat template in chat_template.jinja or "
                                            "tokenizer_config.json; got none",
            (self.scratch / "gone", b"[{}]"): f"chat template: the model must be a directory; got {self.scratch}/gone",
        }
        for (model, messages), line in lines.items():
            code, out, error = self.run_command("--model", model, messages=messages)
            self.assertEqual((code, out, error[:len(line) + 11], error.count("\n")), (2, "", "shardwise: " + line, 1))
