"""What hw.onnx is made of: array functions, the translation of torch graphs, the reader of encoders."""
# SPDX-License-Identifier: Apache-2.0
