"""What headwise.transformers is made of."""
# SPDX-License-Identifier: Apache-2.0
