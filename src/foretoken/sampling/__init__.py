"""How tokens are chosen: processors that edit logits, and the sampler that holds one sequence's history and dice."""
