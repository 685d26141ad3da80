// Stands for an extension module that was built from patched source.
int built_from_source(void) { return 1; }
