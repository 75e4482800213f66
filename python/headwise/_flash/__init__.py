"""What headwise.flash_attn is made of."""
# SPDX-License-Identifier: Apache-2.0
