/* What the libraries take from glibc, by ways that glibc 2.28 has as well.
 *
 * The linker binds a name to the newest version that the building machine's glibc has, and a program on an older one
 * does not load then. These few names are all of which there are versions after 2.28. They stay inside of the
 * libraries: the version scripts make all else local. scripts/link-verbs refuses what is not caught here. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct stat64; /* The kernel's structure, where long has 64 bits. */

/* Functions since 2.33; before, programs had them in a static part of glibc. */
int fstatat64(int directory, const char *path, struct stat64 *status, int flags) {
    return syscall(SYS_newfstatat, directory, path, status, flags);
}

int stat64(const char *path, struct stat64 *status) {
    return fstatat64(AT_FDCWD, path, status, 0);
}

int fstat64(int descriptor, struct stat64 *status) {
    return syscall(SYS_fstat, descriptor, status);
}

/* Since 2.30. */
pid_t gettid(void) {
    return syscall(SYS_gettid);
}

/* In libc since 2.34, in libpthread before; both have them by the version of the first glibc of the architecture. */
#ifdef __x86_64__
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif
#define OLDER(name) __asm__(".symver older_" #name ", " #name "@" FIRST)

OLDER(pthread_key_create);
OLDER(pthread_key_delete);
OLDER(pthread_setspecific);
OLDER(pthread_getattr_np);
OLDER(pthread_attr_getstack);
OLDER(pthread_create);
OLDER(pthread_detach);
OLDER(pthread_join);
OLDER(pthread_sigmask);
int older_pthread_key_create(pthread_key_t *key, void (*destructor)(void *));
int older_pthread_key_delete(pthread_key_t key);
int older_pthread_setspecific(pthread_key_t key, const void *value);
int older_pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes);
int older_pthread_attr_getstack(const pthread_attr_t *attributes, void **start, size_t *bytes);
int older_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);
int older_pthread_detach(pthread_t thread);
int older_pthread_join(pthread_t thread, void **result);
int older_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);

int pthread_key_create(pthread_key_t *key, void (*destructor)(void *)) {
    return older_pthread_key_create(key, destructor);
}

int pthread_key_delete(pthread_key_t key) {
    return older_pthread_key_delete(key);
}

int pthread_setspecific(pthread_key_t key, const void *value) {
    return older_pthread_setspecific(key, value);
}

int pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes) {
    return older_pthread_getattr_np(thread, attributes);
}

int pthread_attr_getstack(const pthread_attr_t *attributes, void **start, size_t *bytes) {
    return older_pthread_attr_getstack(attributes, start, bytes);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    return older_pthread_create(thread, attributes, body, argument);
}

int pthread_detach(pthread_t thread) {
    return older_pthread_detach(thread);
}

int pthread_join(pthread_t thread, void **result) {
    return older_pthread_join(thread, result);
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *before) {
    return older_pthread_sigmask(how, set, before);
}
