"""Physics that can be differentiated: gradients of rewards flow through the simulator to the policy."""
