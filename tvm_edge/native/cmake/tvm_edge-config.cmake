# find_package(tvm_edge): the target tvm_edge::runtime, the C and C++ interface of tvm-edge.
#
#   cmake -S . -B build -Dtvm_edge_DIR="$(tvm-edge cmake-dir)"
#
# Programs find the library where it is now. For another machine write a bundle: tvm-edge bundle.
include(FindPackageHandleStandardArgs)

get_filename_component(tvm_edge_ROOT_DIR "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(tvm_edge_INCLUDE_DIR "${tvm_edge_ROOT_DIR}/include")
set(tvm_edge_LIBRARY "${tvm_edge_ROOT_DIR}/lib/libtvm_edge_runtime.so.0")
if(NOT EXISTS "${tvm_edge_LIBRARY}")
  # An editable install has what is built in site-packages.
  find_package(Python3 QUIET COMPONENTS Interpreter)
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" -c
            "from tvm_edge.library_path import library_path; print(library_path())"
    OUTPUT_VARIABLE tvm_edge_LIBRARY OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()

# TVM's libraries lie beside it in a bundle, and in site-packages otherwise.
get_filename_component(tvm_edge_LIBRARY_DIR "${tvm_edge_LIBRARY}" DIRECTORY)
set(tvm_edge_LIBRARY_DIRS "${tvm_edge_LIBRARY_DIR}")
foreach(folder tvm tvm_ffi)
  get_filename_component(found "${tvm_edge_LIBRARY_DIR}/../../../${folder}/lib" ABSOLUTE)
  if(EXISTS "${found}")
    list(APPEND tvm_edge_LIBRARY_DIRS "${found}")
  endif()
endforeach()

find_package_handle_standard_args(tvm_edge
  REQUIRED_VARS tvm_edge_LIBRARY tvm_edge_INCLUDE_DIR)

if(tvm_edge_FOUND AND NOT TARGET tvm_edge::runtime)
  add_library(tvm_edge::runtime SHARED IMPORTED)
  set_target_properties(tvm_edge::runtime PROPERTIES
    IMPORTED_LOCATION "${tvm_edge_LIBRARY}"
    IMPORTED_SONAME "libtvm_edge_runtime.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${tvm_edge_INCLUDE_DIR}"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
  list(JOIN tvm_edge_LIBRARY_DIRS ":" folders)
  target_link_options(tvm_edge::runtime INTERFACE "LINKER:-rpath-link,${folders}")
endif()
