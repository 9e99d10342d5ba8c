/* What the standard library asks an unwinder for to print a backtrace. Alpine has the unwinder (libgcc) in a package of
 * its own, which programs in C do without: a library that fails says so and aborts, as everywhere, and prints an empty
 * backtrace. */
int _Unwind_Backtrace(void *trace, void *argument) {
    (void)trace, (void)argument;
    return 5; /* _URC_END_OF_STACK */
}

unsigned long _Unwind_GetIP(void *context) {
    (void)context;
    return 0;
}
