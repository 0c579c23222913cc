// Writes the counts of a process that ends by _exit or _Exit, which run no destructor. Linked into every
// program of a coverage build (cmake/flags.cmake).

extern "C" {

void __gcov_dump();
[[noreturn]] void __real__exit(int status);

[[noreturn]] void __wrap__exit(int status) {
  __gcov_dump();
  __real__exit(status);
}

[[noreturn]] void __wrap__Exit(int status) {
  __wrap__exit(status);
}
}
