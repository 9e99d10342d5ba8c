/* What libviaduct-sockets takes from glibc besides what crates/verbs/older-glibc.c has, by ways that glibc 2.28 has as
 * well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#ifdef __x86_64__
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif
#define OLDER(name) __asm__(".symver older_" #name ", " #name "@" FIRST)

OLDER(dlsym);
OLDER(pthread_attr_setstacksize);
void *older_dlsym(void *where, const char *name);
int older_pthread_attr_setstacksize(pthread_attr_t *attributes, size_t bytes);

void *dlsym(void *where, const char *name) {
    return older_dlsym(where, name);
}

int pthread_attr_setstacksize(pthread_attr_t *attributes, size_t bytes) {
    return older_pthread_attr_setstacksize(attributes, bytes);
}
