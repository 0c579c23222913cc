"""OpenVINO's side of the generation benchmark, with the protocol of worker.h.

    openvino_peer.py make SHAPE.json DIRECTORY   write this shape with random weights: f16, q8_0 and q4_0
    openvino_peer.py decode|prefill DIRECTORY/openvino-NAME/openvino_model.xml

Runs in .venv-bench. OpenVINO GenAI converts GGUF files; the model then runs without its pipeline, so that a step is one token. The
defaults of the CPU hold: bf16 where the processor has it, keys and values in 8 bits, and activations of quantized products in 8 bits.
"""

import os
import pathlib
import shutil

import generation_worker
import gguf_files
import numpy
import openvino
import openvino_genai
from generation_worker import CONTEXT, MOST
from openvino import opset13


def convert(file, directory):
    """Writes DIRECTORY/openvino_model.xml."""
    directory.mkdir()
    link = directory / file.name  # the model is written beside it
    link.symlink_to(file)
    try:
        openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    except RuntimeError:  # the tokenizer of random weights has no merges to speak of; the model has been written by then
        if not (directory / "openvino_model.xml").exists():
            raise


def make(shape, directory):
    for name in ("f16", "q8_0", "q4_0"):
        source = pathlib.Path(directory, "gguf")
        source.mkdir()
        convert(gguf_files.write(shape, source, name), pathlib.Path(directory, f"openvino-{name}"))
        shutil.rmtree(source)


def keep_last_row(model):
    """Computes the logits of the last token only, as OpenVINO GenAI's pipeline does."""
    head = model.output("logits").get_node().input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    rows = head.input_value(0)
    last = opset13.slice(rows, numpy.array([-1]), numpy.array([2**31 - 1]), numpy.array([1]), numpy.array([1]))
    head.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


class Text:
    def __init__(self, file):
        core = openvino.Core()
        model = core.read_model(file)
        keep_last_row(model)
        threads = int(os.environ["SHARDWISE_THREADS"])
        compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"})
        self.request = compiled.create_infer_request()
        self.restart(CONTEXT)

    def decode(self):
        self.read([self.token])

    def restart(self, length):
        self.request.reset_state()
        self.length = 0
        self.read([7] * length)

    def read(self, ids):
        if self.length + len(ids) > MOST:
            self.restart(CONTEXT)
        end = self.length + len(ids)
        positions = numpy.arange(self.length, end, dtype=numpy.int64)[None]
        self.request.infer({"input_ids": numpy.array([ids], numpy.int64), "attention_mask": numpy.ones((1, end), numpy.int64),
                            "position_ids": positions, "beam_idx": numpy.zeros(1, numpy.int32)})
        self.length = end
        self.token = int(self.request.get_tensor("logits").data[0, -1].argmax())


if __name__ == "__main__":
    generation_worker.main(Text, make)
