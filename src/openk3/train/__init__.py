"""Training: data, optimisers, router balance, loss, and the loop that holds them together."""
