"""Difficult texts for tokenizers, equal on every run: scripts, emoji, control characters, blanks, long words, invalid
UTF-8, and special tokens within them."""
import random
import unicodedata

# Ranges of scripts and symbols in Unicode 12: for later ones the libraries' tables disagree about which characters are
# letters.
RANGES = [(0x20, 0x7e), (0x20, 0x7e), (0xa0, 0x24f), (0x250, 0x36f), (0x370, 0x3ff), (0x400, 0x52f), (0x531, 0x5f4),
          (0x600, 0x6ff), (0x710, 0x74a), (0x900, 0x97f), (0x980, 0x9fe), (0xb80, 0xbfa), (0xe00, 0xe5b),
          (0xf00, 0xfda), (0x1000, 0x109f), (0x10a0, 0x10ff), (0x1100, 0x11ff), (0x1200, 0x137c), (0x13a0, 0x13f5),
          (0x1780, 0x17f9), (0x1800, 0x18aa), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x209c), (0x20a0, 0x20bf),
          (0x20d0, 0x20f0), (0x2100, 0x218b), (0x2190, 0x23ff), (0x2460, 0x24ff), (0x2580, 0x27bf), (0x2e80, 0x2fd5),
          (0x3000, 0x30ff), (0x3400, 0x4d00), (0x4e00, 0x9fa5), (0xa000, 0xa48c), (0xac00, 0xd7a3), (0xf900, 0xfad9),
          (0xfb00, 0xfb4f), (0xfe00, 0xfe0f), (0xfe70, 0xfeff), (0xff00, 0xffef), (0x10000, 0x100fa),
          (0x10300, 0x10323), (0x1d400, 0x1d7ff), (0x1f300, 0x1f64f), (0x1f900, 0x1f93f), (0x20000, 0x20100)]
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "1️⃣", "👨🏿‍🚀", "🤷‍♀️", "\u200d", "\ufe0f"]
BLANKS = [" ", "  ", "    ", "\t", "\n", "\r\n", "\n\n\n", "\u00a0", "\u3000", "\u2028", "\x85", "\u180e", "\u200b",
          " \n ", "\t\t ", "\x0b", "\x0c", "\x1c", "\u1680"]
CODE = ["def f(x):\n    return x", "'s", "'S", "'ll", "I'm", "we'VE", "it'\u017f", "don't", "3.14159", "1234567", "x+=1;",
        "http://a.b/c?d=e&f", "{\"a\": [1, 2]}", "ﬁ", "ǆ", "é", "e\u0301", "a\u0328\u0301", "각", "\u1100\u1161\u11a8",
        "\u0958", "Å", "\u212b", "ß", "İ", "▁", "▁▁a", "一、一", "カー", "a_ⅷb", "aⓐb", "ⅷⓐ", "ŉ", "ﬆ", "STRASSE fish", "<0x41>", "Ġa", "Ċ", "²", "½", "٣", "一二三", "\ufeff", "\ufffd"]
BAD = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xed\xb0\x80\xed\xa0\xbd", b"\xc0\xaf", b"\x80",
       b"\xf4\x90\x80\x80", b"\xf8\x88", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xfe\xfe"]


def is_known_to_all(c):
    """Returns whether the character is assigned and, if it composes or is reordered, in Unicode 9, as the tokenizers package."""
    if unicodedata.combining(c) or unicodedata.decomposition(c):
        return unicodedata.ucd_3_2_0.category(c) != "Cn"
    return unicodedata.category(c) not in ("Cn", "Cs")


def assigned(draw, low, high):
    while True:
        c = chr(draw.randint(low, high))
        if is_known_to_all(c):
            return c


def word(draw):
    low, high = draw.choice(RANGES)
    return "".join(assigned(draw, low, high) for _ in range(draw.randint(1, 8)))


def piece(draw, corpus, specials):
    kind = draw.random()
    if kind < 0.30:
        begin = draw.randrange(len(corpus))
        return corpus[begin:begin + draw.randint(1, 60)]
    if kind < 0.55:
        return word(draw) + draw.choice(["", " ", ""])
    if kind < 0.65:
        return draw.choice(BLANKS) * draw.choice([1, 1, 2, 7])
    if kind < 0.73:
        return draw.choice(EMOJI)
    if kind < 0.85:
        return draw.choice(CODE)
    if kind < 0.90:
        return chr(draw.choice([*range(1, 32), 127, *range(128, 160), 0]))
    if kind < 0.97:
        return draw.choice(specials)
    return draw.choice(["a", "ab", "日本", "é", "=", " ", "e\u0301"]) * draw.randint(30, 300)  # one very long word


def texts(count, corpus, specials, seed):
    """Returns `count` strings; the first few are edge cases."""
    draw = random.Random(seed)
    made = ["", " ", "\n", "a", specials[0], " " + specials[0] + " ", "\x00", "  hello", "\ufffd"]
    while len(made) < count:
        made.append("".join(piece(draw, corpus, specials) for _ in range(draw.randint(1, 12))))
    return made


def broken_lines(count, corpus, specials, seed):
    """Returns `count` lines of bytes, mostly invalid UTF-8."""
    draw = random.Random(seed)
    lines = []
    while len(lines) < count:
        parts = [draw.choice(BAD) if draw.random() < 0.4 else piece(draw, corpus, specials).encode()
                 for _ in range(draw.randint(1, 8))]
        lines.append(b"".join(parts).replace(b"\n", b" "))
    return lines
