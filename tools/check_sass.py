#!/usr/bin/env python3
"""Reads `cuobjdump --dump-sass`: a loop of the forward that multiplies must keep its descriptors in uniform registers.

An R2UR between the products of such a loop cost the 192 x 80 tile 15 %. Usage: cuobjdump --dump-sass LIB | check_sass.py"""
import re
import sys

FUNCTION = re.compile(r"Function : (\S*hopper_forward\S*)|Function : (\S+)")
LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);")
LEAST_PRODUCTS, LONGEST = 8, 1200  # products that make a loop the main one; instructions
# Bias, dropout and statistics of rows stand in the loops of two instances, behind the products: there loops without one inside
# count, up to their last product. At D256 two R2UR behind it move what a bias is addressed by.
LONG = ("TilePassesE1", "TilePassesE2")


def loops(code):
    at = {address: i for i, (address, _) in enumerate(code)}
    for i, (address, words) in enumerate(code):
        # A loop ends in a conditional branch back; a wait that stands out of line returns by a plain one.
        back = re.search(r"^@\S+ BRA\S* .*0x([0-9a-f]+)", words)
        if back and int(back[1], 16) < address and int(back[1], 16) in at:
            yield at[int(back[1], 16)], i + 1


def main():
    functions, name = {}, None
    for line in sys.stdin:
        if found := FUNCTION.search(line):
            name = found[1]
        elif name and (found := LINE.match(line)):
            functions.setdefault(name, []).append((int(found[1], 16), found[2]))
    faults = checked = 0
    for name, code in functions.items():
        long = any(part in name for part in LONG)
        whole = [(a, b) for a, b in loops(code) if sum("HGMMA" in w for _, w in code[a:b]) >= LEAST_PRODUCTS]
        for begin, end in whole:
            body = [w for _, w in code[begin:end]]
            products = sum("HGMMA" in w for w in body)
            holds_another = any(begin <= a and b <= end and b - a < end - begin for a, b in whole)
            if len(body) > LONGEST and (not long or holds_another):
                continue
            checked += 1
            if long:
                body = body[:max(i for i, w in enumerate(body) if "HGMMA" in w)]
            moves = sum("R2UR" in w for w in body)
            if moves:
                print(f"check_sass: {name}: {moves} R2UR in a loop of {products} products")
                faults += 1
    print(f"check_sass: {checked} loops of {len(functions)} kernels, {faults} faults")
    return 1 if faults or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
