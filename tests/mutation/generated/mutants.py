"""Finds the places of a C++ source that a machine can change: operators, constants and calls.

A mutant is one small change of one place. All mutants of a source are compiled into one copy of it: each changed expression
becomes `(mutant(7) ? changed : original)`, and $SHARDWISE_MUTANT chooses the number. So only code that runs can change: constants
in declarations with constexpr, template arguments, labels, array sizes and preprocessor lines stay.
"""
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

import tree_sitter_cpp
from tree_sitter import Language, Parser

ROOT = Path(__file__).resolve().parent.parent.parent.parent
HEADER = '#include "tests/mutation/generated/mutant.h"\n'
SAMPLE = Path(__file__).resolve().parent / "sample.txt"
PARSER = Parser(Language(tree_sitter_cpp.language()))

OPERATORS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "/", "/": "*",
             "%": "/", "&&": "||", "||": "&&", "&": "|", "|": "&", "+=": "-=", "-=": "+="}
# What is evaluated while compiling, and what the machine must not change because it is no code.
FIXED = {"template_argument_list", "template_parameter_list", "array_declarator", "enumerator", "attribute_declaration",
         "static_assert_declaration", "parameter_list", "decltype", "preproc_if", "preproc_def", "preproc_function_def"}


@dataclass
class Mutant:
    file: str  # from the root of the repository
    kind: str  # operator, constant or call
    begin: int  # the changed place, in bytes
    end: int
    line: str  # without its indentation
    change: str
    parts: list = field(default_factory=list)  # text and (begin, end) of the operands that the change keeps
    id: str = ""

    def __str__(self):
        return f"{self.id} {self.kind} {self.file}: {self.change}   in: {self.line}"


def text_of(node):
    return node.text.decode()


def is_fixed(node):
    """True if the node is evaluated by the compiler, or is outside functions."""
    is_in_function = False
    while node.parent:
        below, node = node, node.parent
        if node.type in FIXED:
            return True
        if node.type == "case_statement" and node.child_by_field_name("value") == below:
            return True
        if node.type in ("declaration", "field_declaration", "function_definition", "if_statement"):
            if any(text_of(child) in ("constexpr", "consteval", "constinit") for child in node.children):
                return True
        is_in_function |= node.type in ("compound_statement", "field_initializer_list")
    return not is_in_function


def span(node):
    return node.start_byte, node.end_byte


def of_operator(node):
    """A binary expression or an assignment with another operator, or a negation without its `!`."""
    operator = node.child_by_field_name("operator")
    if operator is None:
        return None
    if node.type == "unary_expression" and text_of(operator) == "!":
        return "operator", "! → nothing", ["bool(", span(node.child_by_field_name("argument")), ")"]
    other = OPERATORS.get(text_of(operator))
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if other is None or left is None or right is None:
        return None
    return "operator", f"{text_of(operator)} → {other}", ["((", span(left), f") {other} (", span(right), "))"]


def of_constant(node):
    """A number, one larger, or the other boolean."""
    text = text_of(node)
    if node.type in ("true", "false"):
        other = "false" if text == "true" else "true"
        return "constant", f"{text} → {other}", [other]
    return "constant", f"{text} → {text} + 1", [f"({text} + 1)"]


def of_call(node):
    """A statement that is a call, without effect."""
    call = node.named_children[0] if node.named_children else None
    if call is None or call.type != "call_expression":
        return None
    name = text_of(call.child_by_field_name("function"))
    return "call", f"{' '.join(name.split())}() → nothing", None


def change_of(node):
    if node.type in ("binary_expression", "assignment_expression", "unary_expression"):
        return of_operator(node)
    if node.type in ("number_literal", "true", "false"):
        return of_constant(node)
    if node.type == "expression_statement":
        return of_call(node)
    return None


def nodes_below(node):
    yield node
    for child in node.children:
        yield from nodes_below(child)


def mutants_of(file):
    """Returns the mutants of a source. An id is a hash of the line, the place in it, and how often the same line occurred
    before, so that it stays while the line stays."""
    source = (ROOT / file).read_bytes()
    lines, starts, mutants = source.decode().split("\n"), {}, []
    for number, line in enumerate(lines):
        starts.setdefault(line.strip(), []).append(number)
    for node in nodes_below(PARSER.parse(source).root_node):
        change = change_of(node)
        if change is None or is_fixed(node):
            continue
        kind, words, parts = change
        row, column = node.start_point
        line = lines[row]
        mutant = Mutant(file, kind, node.start_byte, node.end_byte, line.strip(), words, parts)
        repeat = starts[line.strip()].index(row)
        key = f"{file}\n{line.strip()}\n{repeat}\n{column - len(line) + len(line.lstrip())}\n{len(node.text)}\n{words}"
        mutant.id = hashlib.sha1(key.encode()).hexdigest()[:8]
        mutants.append(mutant)
    return mutants


def mutated(file, numbers):
    """Returns the source with the mutants of `numbers`, a number for each id, each disabled until it is chosen."""
    source = (ROOT / file).read_bytes()
    mutants = sorted((m for m in mutants_of(file) if m.id in numbers), key=lambda m: (m.begin, -m.end))
    if missing := sorted(set(numbers) - {mutant.id for mutant in mutants}):
        raise LookupError(f"{file}: must have the lines of the mutants in {SAMPLE.name}; `sample` draws others; "
                          f"got none of {' '.join(missing)}")

    def render(begin, end, inner):
        """The text of [begin, end) with the mutants of `inner`, which lie in it."""
        text, at = "", begin
        while inner:
            first, inner = inner[0], inner[1:]
            nested = [m for m in inner if m.end <= first.end]
            inner = [m for m in inner if m.begin >= first.end]
            text += source[at : first.begin].decode() + switched(first, nested)
            at = first.end
        return text + source[at:end].decode()

    def switched(mutant, nested):
        number = numbers[mutant.id]
        original = render(mutant.begin, mutant.end, nested)
        if mutant.kind == "call":
            return f"{{ if (!mutant({number})) {original} }}"
        changed = "".join(part if isinstance(part, str) else
                          render(*part, [m for m in nested if part[0] <= m.begin and m.end <= part[1]])
                          for part in mutant.parts)
        return f"(mutant({number}) ? {changed} : ({original}))"

    return HEADER + f'#line 1 "{ROOT / file}"\n' + render(0, len(source), mutants)


@dataclass
class Sampled:
    """A line of sample.txt; its place in the file is the mutant's number."""
    id: str
    kind: str
    file: str
    change: str

    @property
    def room(self):
        return str(Path(self.file).parent.relative_to("shardwise"))


def sampled():
    rows = [line for line in SAMPLE.read_text().splitlines() if not line.startswith("#")]
    return [Sampled(*re.fullmatch(r"(\w+) (\w+) (\S+): (.*)", row).groups()) for row in rows]
