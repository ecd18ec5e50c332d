"""Which experts a token goes to, and with what weight: DeepSeek-V4's router.

    score  = sqrt(softplus(logit))                  fp32
    chosen = the top_k largest of score + bias      the bias balances the load; it selects and never weighs
    weight = score / sum of the chosen scores * routed_scaling_factor

The first layers of the model look their experts up by token id instead (`route_hashed`); their weights still come
from the scores, and no bias takes part. Nothing here reads a value on the host, so all of it can be captured.
"""

from __future__ import annotations

import torch

from kernels.moe.arguments import INDEX_DTYPES, require_tensor

LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def router_scores(logits: torch.Tensor) -> torch.Tensor:
    """sqrt(softplus(logits)) in fp32, any shape. Logits in bf16 have lost what the router needs: keep them fp32."""
    if logits.dtype not in LOGIT_DTYPES:
        raise TypeError(f"logits: expected float32 (or bfloat16, float16), got {logits.dtype}")
    return torch.nn.functional.softplus(logits.float()).sqrt()


def route_sqrtsoftplus(
    logits: torch.Tensor,
    top_k: int,
    bias: torch.Tensor | None = None,
    routed_scaling_factor: float = 1.0,
    *,
    renormalize: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose `top_k` of E experts for each token.

    logits (T, E); bias fp32 (E,) or None. Returns weights fp32 (T, top_k) and expert ids int32 (T, top_k), the best
    first; of equal scores the lower expert id wins, on every device. A row that holds NaN (padding) gets distinct ids
    in range and NaN weights, and disturbs no other row.
    """
    require_tensor("logits", logits, (None, None), LOGIT_DTYPES, logits.device)
    experts = logits.shape[1]
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k: expected 1..{experts} (the number of experts), got {top_k}")
    scores = router_scores(logits)
    selection = scores
    if bias is not None:
        require_tensor("bias", bias, (experts,), (torch.float32,), logits.device)
        selection = scores + bias
    # topk leaves the order of equal values open, and a NaN would let one expert be chosen twice; a stable sort
    # does neither.
    order = selection.sort(dim=1, descending=True, stable=True).indices
    ids = order.narrow(1, 0, top_k)
    return _weights(scores.gather(1, ids), routed_scaling_factor, renormalize), ids.to(torch.int32)


def route_hashed(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    token_to_experts: torch.Tensor,
    routed_scaling_factor: float = 1.0,
    *,
    renormalize: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts by token id, weights by score.

    logits (T, E); token_ids int32 or int64 (T,); token_to_experts int32 or int64 (vocabulary, top_k). A token id
    outside the vocabulary (padding) routes nowhere: ids -1, weights 0. Results as in `route_sqrtsoftplus`, in the
    table's order.
    """
    require_tensor("logits", logits, (None, None), LOGIT_DTYPES, logits.device)
    require_tensor("token_ids", token_ids, (logits.shape[0],), INDEX_DTYPES, logits.device)
    require_tensor("token_to_experts", token_to_experts, (None, None), INDEX_DTYPES, logits.device)
    vocabulary = token_to_experts.shape[0]
    known = ((token_ids >= 0) & (token_ids < vocabulary)).unsqueeze(1)
    ids = token_to_experts.index_select(0, token_ids.long().clamp(0, vocabulary - 1)).long()
    weights = _weights(router_scores(logits).gather(1, ids), routed_scaling_factor, renormalize)
    return torch.where(known, weights, 0.0), torch.where(known, ids, -1).to(torch.int32)


def _weights(scores: torch.Tensor, factor: float, renormalize: bool) -> torch.Tensor:
    if renormalize:
        # Scores that all underflow to 0 give weights 0 and not 0/0.
        scores = scores / scores.sum(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return scores * factor
