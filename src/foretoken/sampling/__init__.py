"""How tokens are chosen: processors that edit logits, and the sampler, which holds one sequence's history and noise."""
