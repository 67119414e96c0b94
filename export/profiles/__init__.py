"""Which deployment stacks a policy can be written for: one module a reader."""
