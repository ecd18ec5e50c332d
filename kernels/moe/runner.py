"""One expert layer, ready to run inside a captured graph: weights, scales and workspace owned, and warmed up."""

from __future__ import annotations

import torch

from kernels.moe.arguments import require_implementation, require_limit, require_tensor
from kernels.moe.grouped_gemm import IMPLEMENTATIONS, run_fused_swiglu_grouped_gemm, run_nvfp4_grouped_gemm
from kernels.moe.grouped_scales import gather_swizzled_scales
from kernels.moe.layer import run_nvfp4_moe, run_nvfp4_moe_fused
from kernels.moe.layouts import CANONICAL, L1Layout
from kernels.moe.permute import sort_by_expert
from kernels.moe.swiglu import DEEPSEEK_V4_LIMIT, clamped_swiglu, split_gate_up
from kernels.moe.warmup import refuse_capture, warmup_compilation, warmup_fused_swiglu_compilation
from kernels.moe.weights import MoEWeights, stack_moe_weights
from kernels.moe.workspace import MoEWorkspace
from kernels.nvfp4 import compute_global_scale, quantize_activation_nvfp4


class CuTeDSLMoERunner:
    """The routed experts that this rank holds, of one layer.

        runner = CuTeDSLMoERunner(48, 7168, 3072, experts_start_idx=96, fused_swiglu=True)
        runner.prepare_weights_from_stacked(...)
        runner.set_activation_global_scales(l1, l2)
        runner.warmup()
        y = runner.run(hidden, topk_weights, topk_ids)      # may be captured

    Nothing that a captured graph reads is ever reallocated: new weights and new scales are copied into the buffers of
    the old. Every runner has buffers of its own. One runner serves one stream at a time; for another stream pass a
    workspace from `new_workspace`.

    Implementations: "torch". The one named runs, or construction fails.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        max_num_tokens: int = 8192,
        top_k: int = 6,
        device: torch.device | str = "cuda",
        experts_start_idx: int = 0,
        fused_swiglu: bool = False,
        *,
        swiglu_limit: float | None = DEEPSEEK_V4_LIMIT,
        granularity: int = 8,
        implementation: str = "torch",
    ) -> None:
        """num_experts: those of this rank, global ids from `experts_start_idx`. Sizes in elements."""
        require_implementation(implementation, IMPLEMENTATIONS)
        require_limit(swiglu_limit)
        if hidden_size % 16 or intermediate_size % 16 or min(num_experts, hidden_size, intermediate_size, top_k) < 1:
            raise ValueError(
                "num_experts, hidden_size, intermediate_size, top_k: expected positive numbers, sizes in multiples "
                f"of 16, got {num_experts}, {hidden_size}, {intermediate_size}, {top_k}; pad the weights"
            )
        self.num_experts, self.hidden_size, self.intermediate_size = num_experts, hidden_size, intermediate_size
        self.max_num_tokens, self.top_k, self.experts_start_idx = max_num_tokens, top_k, experts_start_idx
        self.device, self.implementation = torch.device(device), implementation
        self.fused_swiglu = fused_swiglu
        self.layout = L1Layout("gate_up", granularity) if fused_swiglu else CANONICAL
        self.weights: MoEWeights | None = None
        self._limit = swiglu_limit
        self._input_scales = torch.full((2,), torch.nan, dtype=torch.float32, device=self.device)
        self._scales_set = False
        self._workspace: MoEWorkspace | None = None

    @property
    def swiglu_limit(self) -> float | None:
        return self._limit

    def set_swiglu_limit(self, limit: float | None) -> None:
        """Change the clamp; only before `warmup`, for it is a constant of what is compiled and captured."""
        require_limit(limit)
        if self._workspace is not None:
            raise RuntimeError("set_swiglu_limit: the runner is warmed up with another limit; make a new runner")
        self._limit = limit

    def prepare_weights_from_stacked(
        self,
        l1_codes: torch.Tensor,
        l1_scales: torch.Tensor,
        l1_global_scale: torch.Tensor,
        l2_codes: torch.Tensor,
        l2_scales: torch.Tensor,
        l2_global_scale: torch.Tensor,
        layout: L1Layout | str = "vllm_cutlass",
    ) -> None:
        """Take the stacked weights, in the row order `layout`, with linear scales; see `stack_moe_weights`.

        Copies: the arguments may be freed. A second call overwrites the first one's buffers.
        """
        stacked = stack_moe_weights(
            l1_codes, l1_scales, l1_global_scale, l2_codes, l2_scales, l2_global_scale, source=layout,
            target=self.layout,
        )  # fmt: skip
        found = (stacked.experts, stacked.hidden, stacked.intermediate)
        if found != (self.num_experts, self.hidden_size, self.intermediate_size):
            raise ValueError(
                f"weights: expected {self.num_experts} experts, hidden {self.hidden_size}, intermediate "
                f"{self.intermediate_size}, got {found}"
            )
        if stacked.l1_codes.device != self._input_scales.device:
            raise ValueError(f"weights: expected them on {self.device}, got {stacked.l1_codes.device}")
        if self.weights is None:
            self.weights = stacked
        elif self.weights.l1_global_scale.shape != stacked.l1_global_scale.shape:
            raise ValueError("l1_global_scale: expected the shape of the first call; captured graphs depend on it")
        else:
            self.weights.copy_from(stacked)

    def set_activation_global_scales(self, l1: torch.Tensor, l2: torch.Tensor) -> None:
        """Set the calibrated global scales of the two activations (amax / 2688), fp32, one element each.

        Written into the buffer that captured graphs read. They are numbers of their own: the scale of the tokens says
        nothing about that of SwiGLU's result, and neither may stand in for the other.
        """
        for index, (name, scale) in enumerate((("l1", l1), ("l2", l2))):
            if scale.dtype != torch.float32 or scale.numel() != 1:
                raise ValueError(f"{name}: expected one fp32 element, got {tuple(scale.shape)} {scale.dtype}")
            self._input_scales.narrow(0, index, 1).copy_(scale.reshape(1))
        self._scales_set = True

    @torch.no_grad()
    def compute_activation_global_scales(
        self, hidden: torch.Tensor, topk_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Calibrate on real tokens (T, H) and their routes; sets both scales and returns them. Never on made-up data:
        a scale from random numbers saturates or starves every real activation. Offline use; allocates freely.
        """
        refuse_capture(self.device)
        weights = self._ready_weights()
        l1 = compute_global_scale(hidden)
        codes, scales = quantize_activation_nvfp4(hidden, l1)
        order = sort_by_expert(topk_ids, self.num_experts, self.experts_start_idx)
        operands = (
            codes.index_select(0, order.token_of_row), weights.l1_codes,
            gather_swizzled_scales(scales, order.token_of_row, order.expert_offsets), weights.l1_scales,
            order.expert_offsets, weights.l1_global_scale * l1,
        )  # fmt: skip
        if self.layout.granularity is None:
            product = run_nvfp4_grouped_gemm(*operands, out_dtype=torch.float32)
            y = clamped_swiglu(*split_gate_up(product, self.layout.order), self._limit)
        else:
            y = run_fused_swiglu_grouped_gemm(
                *operands, limit=self._limit, order=self.layout.order, granularity=self.layout.granularity,
                out_dtype=torch.float32,
            )  # fmt: skip
        l2 = compute_global_scale(y)
        self.set_activation_global_scales(l1, l2)
        return l1, l2

    def warmup(self) -> None:
        """Compile and load everything eagerly, then allocate the workspace; then, and not before, capture may begin.

        Compiling comes first, so that it can neither displace nor be displaced by a buffer of the run.
        """
        refuse_capture(self.device)
        self._ready_weights()
        double = 2 * self.intermediate_size
        if self.fused_swiglu:
            assert self.layout.granularity is not None
            warmup_fused_swiglu_compilation(
                double, self.hidden_size, self.device, limit=self._limit, granularity=self.layout.granularity,
                implementation=self.implementation,
            )  # fmt: skip
        else:
            warmup_compilation(double, self.hidden_size, self.device, implementation=self.implementation)
        warmup_compilation(self.hidden_size, self.intermediate_size, self.device, implementation=self.implementation)
        if self._workspace is None:
            self._workspace = self.new_workspace()
        if self._scales_set:
            ids = torch.full((1, self.top_k), self.experts_start_idx, dtype=torch.int32, device=self.device)
            zeros = torch.zeros((1, self.hidden_size), dtype=torch.bfloat16, device=self.device)
            self.run(zeros, torch.zeros((1, self.top_k), device=self.device), ids)

    def new_workspace(self) -> MoEWorkspace:
        """Buffers for a second stream; keep them alive as long as a graph that uses them."""
        return MoEWorkspace.allocate(
            self.max_num_tokens, self.top_k, self.hidden_size, self.intermediate_size, fused=self.fused_swiglu,
            device=self.device,
        )  # fmt: skip

    def run(
        self,
        hidden: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        *,
        workspace: MoEWorkspace | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(T, H) in, (T, H) out, T <= max_num_tokens; see `run_nvfp4_moe`. The result is never workspace memory.

        Raises:
            RuntimeError: weights, scales or warm-up missing.
        """
        weights = self._ready_weights()
        if not self._scales_set:
            raise RuntimeError("run: no activation scales; call set_activation_global_scales with calibrated ones")
        if self._workspace is None:
            raise RuntimeError("run: not warmed up; call warmup() once, outside any graph capture")
        require_tensor("topk_ids", topk_ids, (hidden.shape[0], self.top_k), (torch.int32, torch.int64), hidden.device)
        function = run_nvfp4_moe_fused if self.fused_swiglu else run_nvfp4_moe
        return function(
            hidden, weights, self._input_scales.narrow(0, 0, 1), self._input_scales.narrow(0, 1, 1), topk_weights,
            topk_ids, limit=self._limit, experts_start_idx=self.experts_start_idx,
            workspace=self._workspace if workspace is None else workspace, out=out,
            implementation=self.implementation,
        )  # fmt: skip

    def _ready_weights(self) -> MoEWeights:
        if self.weights is None:
            raise RuntimeError("no weights; call prepare_weights_from_stacked first")
        return self.weights
