"""What the peers of the generation benchmark share: the protocol of worker.h and the lengths of texts.

A peer's Text has decode(), which generates a token, and restart(length), which reads a prompt of that length.
"""

import json
import pathlib
import sys
import time

CONTEXT, PROMPT, MOST = 32, 512, 1024  # tokens at the start of decoding, in a prompt, and in a text at most


def serve(step):
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


def main(text_of, make=None):
    """Runs `make SHAPE.json DIRECTORY`, or `decode|prefill ARGUMENTS` with text_of(ARGUMENTS)."""
    what, *arguments = sys.argv[1:]
    if what == "make":
        shape, directory = arguments
        return make(json.loads(pathlib.Path(shape).read_text()), directory)
    text = text_of(*arguments)
    serve(text.decode if what == "decode" else lambda: text.restart(PROMPT))
