#!/bin/sh
# Builds and runs check_core.cpp: natively, with AVX-512 emulated (needs SIMDe's headers), and for aarch64 under qemu-user
# (needs an aarch64 cross compiler). What is missing is skipped and said. Usage: csrc/tests/run.sh [build folder]
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$(mktemp -d)}
mkdir -p "$build"
flags="-std=c++20 -O2 -ffp-contract=off -pthread"
core="dispatch pool select stream topk_stats"

build_and_run() { # name, compiler, runner, defines, "file:flags ..."
  name=$1; compiler=$2; runner=$3; defines=$4; isas=$5
  objects=""
  for file in $core; do
    $compiler $flags $defines -c "$here/core/$file.cpp" -o "$build/$name-$file.o"
    objects="$objects $build/$name-$file.o"
  done
  for entry in $isas; do
    file=${entry%%:*}
    options=$(echo "${entry#*:}" | tr ',' ' ')
    $compiler $flags $defines $options -w -c "$here/isa/$file.cpp" -o "$build/$name-$file.o"
    objects="$objects $build/$name-$file.o"
  done
  $compiler $flags $defines "$here/tests/check_core.cpp" $objects -static -o "$build/$name"
  echo "== $name"
  $runner "$build/$name"
}

cxx=${CXX:-g++}
avx2="-mavx2,-mfma,-mf16c"
avx512="-mavx512f,$avx2"
case "$(uname -m)" in
  x86_64)
    build_and_run x86_64 "$cxx" "" "-DENSEMBLE_ISA_X86" "plain: avx2:$avx2 products_avx2:$avx2 avx512:$avx512"
    if [ -e /usr/include/simde/x86/avx512.h ]; then
      build_and_run avx512-emulated "$cxx" "" "-DENSEMBLE_ISA_X86 -DENSEMBLE_EMULATE_AVX512" \
        "plain: avx2:$avx2 products_avx2:$avx2 avx512:-DSIMDE_ENABLE_NATIVE_ALIASES,$avx2"
    else
      echo "== avx512-emulated: skipped, SIMDe's headers are not installed"
    fi
    if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
      build_and_run aarch64 aarch64-linux-gnu-g++ qemu-aarch64 "-DENSEMBLE_ISA_NEON" "plain: neon:"
    else
      echo "== aarch64: skipped, no cross compiler or no qemu-user"
    fi ;;
  aarch64 | arm64) build_and_run aarch64 "$cxx" "" "-DENSEMBLE_ISA_NEON" "plain: neon:" ;;
  *) build_and_run plain "$cxx" "" "" "plain:" ;;
esac
