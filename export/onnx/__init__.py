"""The policy as an ONNX graph: exported (`graph.py`), checked (`check.py`), compared with the policy (`parity.py`)."""
