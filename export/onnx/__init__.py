"""The policy as an ONNX graph: written (`graph.py`), checked, compared with the trained network (`parity.py`)."""
