/* A library of which each thread keeps something for itself: not static, or the compiler would know that it stays 0. */
_Thread_local char kept[8000];

int last(void) { return kept[7999]; }
