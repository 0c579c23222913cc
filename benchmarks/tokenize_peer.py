"""The tokenizers package's side of the tokenize benchmark, and the inputs of both sides.

    tokenize_peer.py TOKENIZER.json TEXTS       worker with the protocol of worker.h; zero bytes separate the texts
    tokenize_peer.py make DIRECTORY MEGABYTES   trains gpt2, llama3, qwen2 and llama2 tokenizers, and writes the texts
"""
import json
import pathlib
import sys
import sysconfig
import time

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
VOCAB = 32000


def serve(tokenizer, texts):
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            ids = [each.ids for each in tokenizer.encode_batch_fast(texts)]  # without offsets
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "ids": sum(map(len, ids)), "last": ids[-1][-1]}), flush=True)


def corpus(megabytes):
    """Returns the sources of this Python's library and packages: English comments, and data in many scripts."""
    paths = sorted(pathlib.Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    text, size = [], 0
    for path in paths:
        part = path.read_text(errors="replace").replace("\0", " ")
        if not part:
            continue
        text.append(part)
        size += len(part.encode())
        if size >= megabytes * 1_000_000:
            break
    return text


def byte_level(pattern=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def make(directory, megabytes):
    directory.mkdir(parents=True, exist_ok=True)
    texts = corpus(megabytes)
    (directory / "texts").write_text("\0".join(texts))
    lines = [line + "\n" for text in texts for line in text.split("\n")]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    qwen2 = byte_level(LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"))
    qwen2.normalizer = normalizers.NFC()
    for name, tokenizer in {"gpt2": byte_level(), "llama3": byte_level(LLAMA3, ignore_merges=True), "qwen2": qwen2}.items():
        tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
            vocab_size=VOCAB, initial_alphabet=alphabet, show_progress=False, special_tokens=["<|endoftext|>"]))
        tokenizer.save(str(directory / f"{name}.json"))
    llama2 = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    llama2.pre_tokenizer = pre_tokenizers.Metaspace()
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    llama2.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=VOCAB, limit_alphabet=500, show_progress=False,
                                                          special_tokens=["<unk>", *bytes_]))
    llama2.pre_tokenizer = None
    llama2.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    llama2.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    file = json.loads(llama2.to_str())
    file["added_tokens"] = file["added_tokens"][:1]
    (directory / "llama2.json").write_text(json.dumps(file))


def main():
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]), float(sys.argv[3]))
    else:
        serve(Tokenizer.from_file(sys.argv[1]), pathlib.Path(sys.argv[2]).read_bytes().decode().split("\0"))


main()
