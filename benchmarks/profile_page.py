"""Runs the experiments of `shardwise profile` on this machine, and writes their tables to benchmarks/results/.

    .venv/bin/python benchmarks/profile_page.py [--seconds S] [--note TEXT]

The program is build/shardwise, or the one that SHARDWISE_PROGRAM names. A command that this machine cannot run, such as hosts
without root, is on the page with its error. It takes some minutes on two cores.
"""

import argparse
import datetime
import os
import shlex
import subprocess
import sys

from machine import BUILD, ROOT, cpu_family, cpu_name, result_path

PROGRAM = os.environ.get("SHARDWISE_PROGRAM", str(BUILD / "shardwise"))
CASES = {
    "Products": ["products --ranks 1,2 --dtype fp32", "products --ranks 1 --dtype bf16 --sizes 64:1024"],
    "An MLP over ranks and width": ["mlp --ranks 1,2 --hidden 256,512,1024,2048 --dtype fp32",
                                    "mlp --ranks 1,2 --hidden 512 --seq-len 512 --batch-size 4 --backward --sequence-parallel --dtype fp32"],
    "A block over ranks": ["block --ranks 1,2 --backward --dtype fp32 --largest"],
    "A training step over ranks": ["step --ranks 1,2 --dtype fp32 --largest"],
    "Outputs and time of an MLP of 4096 x 11008": ["mlp --compare --ranks 1,2"],
    "Two emulated hosts": ["mlp --ranks 1,2 --hidden 512,2048 --dtype fp32 --hosts 2 --rate 10gbit",
                           "mlp --ranks 1,2 --hidden 512,2048 --dtype fp32 --hosts 2 --rate 1gbit",
                           "block --ranks 1,2,4 --dtype fp32 --hosts 2 --rate 1gbit",
                           "mlp --ranks 1,2 --hidden 512,2048 --dtype fp32 --hosts 2 --delay 50us --rate 10gbit"],
}


def tables(case, seconds):
    """Returns the command and what it prints, or its error."""
    command = ["profile", *shlex.split(case), *(["--seconds", str(seconds)] if seconds else [])]
    print("shardwise", *command, file=sys.stderr, flush=True)
    done = subprocess.run([PROGRAM, *command], capture_output=True, text=True)
    if done.returncode not in (0, 2):
        sys.exit(f"profile_page: shardwise {' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return f"$ build/shardwise {' '.join(command)}\n{done.stdout if done.returncode == 0 else done.stderr}"


def page(options):
    load = os.getloadavg()[0]
    yield f"# shardwise profile on {cpu_name().split('@')[0].strip()}, {datetime.date.today().isoformat()}\n"
    yield (f"CPU: {cpu_name()} (family {cpu_family()}), {len(os.sched_getaffinity(0))} cores, one thread for each of two ranks.\n"
           f"Load average before the first command: {load:.1f}.{' ' + options.note if options.note else ''}")
    seconds = f" --seconds {options.seconds:g}" if options.seconds else ""
    yield f"Command: `.venv/bin/python benchmarks/profile_page.py{seconds}`.\n"
    for title, cases in CASES.items():
        yield f"## {title}\n```"
        yield "".join(tables(case, options.seconds) for case in cases) + "```\n"
    yield f"Load average after the last command: {os.getloadavg()[0]:.1f}."


def main():
    parser = argparse.ArgumentParser(description="Writes the tables of shardwise profile to benchmarks/results/.")
    parser.add_argument("--seconds", type=float, help="of each row [shardwise profile's]")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    path = result_path("profile", "md")
    path.write_text("\n".join(page(parser.parse_args())) + "\n")
    print(path.relative_to(ROOT))


main()
