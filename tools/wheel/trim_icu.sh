#!/bin/sh
# Writes libicudata with word breaks and normal forms alone into a folder: 4 of its 31 MB. Usage: trim_icu.sh FOLDER [PREFIX ARCHIVE]
# PREFIX: of the tools of another machine, as in aarch64-linux-gnu-; ARCHIVE: its libicudata.a. icupkg comes with libicu-dev.
set -eu
cd "$1"
prefix=${2:-}
archive=${3:-$(cc -print-file-name=libicudata.a)}
name=$(ar t "$archive" | sed -n 's/_dat\.o$//p')
number=$(echo "$name" | tr -dc 0-9)
ar p "$archive" "${name}_dat.o" > whole.o
mkdir whole small
"${prefix}objcopy" -O binary -j .rodata whole.o "whole/$name.dat"
icupkg -l "whole/$name.dat" | grep -v -x -e 'brkitr/.*' -e 'root\.res' -e 'res_index\.res' -e 'pool\.res' \
  -e '.*\.nrm' -e 'u[a-z]*\.icu' > gone.txt
icupkg -r gone.txt "whole/$name.dat" "small/$name.dat"
printf '%s\n' '.section .rodata' ".globl icudt${number}_dat" '.balign 16' ".type icudt${number}_dat, %object" \
  "icudt${number}_dat:" ".incbin \"small/$name.dat\"" ".size icudt${number}_dat, .-icudt${number}_dat" \
  '.section .note.GNU-stack,"",%progbits' > data.s
"${prefix}gcc" -shared -nostdlib "-Wl,-soname,libicudata.so.$number" -o "libicudata.so.$number" data.s
rm -rf whole whole.o small data.s gone.txt
