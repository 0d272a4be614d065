#!/bin/sh
# Mount what the board needs and run a command, which enters it: enter.sh ROOT SHARED COMMAND …
# SHARED is a folder that both see under one name. In namespaces that `unshare` made, so that the
# machine's mounts stay as they are, and Linux runs AArch64 programs by QEMU in here alone (its 6.7
# and later). This shell stays the first process of the namespace, as signals pass by that one.
set -eu
root=$1 shared=$2
shift 2
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
# Offset, magic and mask of ELF files of 64 bits, little-endian, machine 183; F: opened now, as the
# board has no QEMU.
printf '%s%s%s' ':board:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00' \
    ':\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff' \
    ":$(command -v qemu-aarch64-static):F" >/proc/sys/fs/binfmt_misc/register
mount -t proc proc "$root/proc"
# What Linux tells of the CPU; a test may have it tell of another.
cpuinfo=$root/etc/cpuinfo
test ! -e "$shared/cpuinfo" || cpuinfo=$shared/cpuinfo
mount --bind "$cpuinfo" "$root/proc/cpuinfo"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root$shared"
mount --bind "$shared" "$root$shared"
status=0
"$@" || status=$?
exit $status
