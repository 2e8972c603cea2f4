"""Opens ONNX models: operators, work, bytes, memory."""
