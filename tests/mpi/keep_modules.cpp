// Keeps Open MPI's modules loaded until the leak sanitizer has named the frames in them, so that
// tests/mpi/leaks suppresses theirs alone. Part of sanitized programs.
extern "C" int dlclose(void*) {
  return 0;
}
