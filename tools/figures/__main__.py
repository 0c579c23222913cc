"""python3 tools/figures [NAME...] [--from PROFILE.json] [--out DIR] [--text] [--list]

Draws the figures of docs/figures from the program's own numbers: `shardwise plan`, and measurements recorded as JSON. The
program is build/shardwise, or the one that SHARDWISE_PROGRAM names. The same input gives the same bytes. --from draws one of the
figures profile_* from a run of `shardwise profile ... --json` instead of the recorded one.
"""
import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "charts")]

import all_reduce  # noqa: E402
import axes  # noqa: E402
import block  # noqa: E402
import collectives  # noqa: E402
import column_row  # noqa: E402
import curves  # noqa: E402
import measured  # noqa: E402
import memory  # noqa: E402
import ratio  # noqa: E402
import shards  # noqa: E402
import speed  # noqa: E402
import timeline  # noqa: E402

FIGURES = {"shards": shards.draw, "column_row": column_row.draw, "ring": collectives.draw_ring,
           "two_shot": collectives.draw_two_shot, "block_tp": block.draw_tp, "block_tp_sp": block.draw_tp_sp,
           "axes": axes.draw, "memory": memory.draw, "ratio": ratio.draw, "all_reduce": all_reduce.draw,
           "timeline": timeline.draw, "curves": curves.draw, "speed": speed.draw}
OF_PROFILES = {"profile_products": measured.draw_products, "profile_ratio": measured.draw_ratio, "profile_degree": measured.draw_degree}
FIGURES |= OF_PROFILES


def arguments():
    parser = argparse.ArgumentParser(prog="figures", description="Draws the figures of docs/figures.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a figure of --list [all]")
    parser.add_argument("--from", dest="profile", type=Path, metavar="PROFILE.json",
                        help="draws NAME, one of profile_*, from this run [the recorded one]")
    parser.add_argument("--out", type=Path, metavar="DIR", default=HERE.parents[1] / "docs/figures", help="writes DIR/NAME.svg [docs/figures]")
    parser.add_argument("--text", action="store_true", help="prints the figures as text and writes nothing")
    parser.add_argument("--list", action="store_true", help="prints the names")
    found = parser.parse_args()
    for name in found.names:
        if name not in FIGURES:
            parser.error(f"NAME must be one of {', '.join(FIGURES)}; got {name}")
    if found.profile and (len(found.names) != 1 or found.names[0] not in OF_PROFILES):
        parser.error(f"--from needs one NAME of {', '.join(OF_PROFILES)}; got {' '.join(found.names) or 'none'}")
    return found


def write(path, content):
    """Replaces the file at once."""
    new = path.with_suffix(".new")
    new.write_text(content)
    os.replace(new, path)


def main():
    options = arguments()
    if options.list:
        print("\n".join(FIGURES))
        return
    for name in options.names or FIGURES:
        figure = OF_PROFILES[name](name, options.profile) if options.profile else FIGURES[name](name)
        if options.text:
            print(figure.text())
        else:
            options.out.mkdir(parents=True, exist_ok=True)
            write(options.out / f"{name}.svg", figure.svg())


main()
