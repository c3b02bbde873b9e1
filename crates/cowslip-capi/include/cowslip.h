/*
 * Cowslip for C and C++: memory that is frozen and forked in microseconds, saved and restored, on huge pages.
 *
 * - Each call that can fail returns a cowslip_status, COWSLIP_OK or the kind of failure. Where `error` is not
 *   NULL, `*error` becomes the reason and the advice, or NULL.
 * - Every handle has its own _free, which takes NULL. Handles may be used by many threads at once, except
 *   that a clone is reset, and any handle freed, when nobody else uses it.
 * - Structures of options begin with their size: zero the rest for the defaults. NULL is all defaults.
 * - Lengths are in bytes, times in nanoseconds.
 *
 * Generated from the sources by cbindgen: do not edit.
 */


#ifndef COWSLIP_H
#define COWSLIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The version of this interface. It grows with every added function; nothing is removed while the library is
// libcowslip.so.0.
#define COWSLIP_ABI 2

// The result of a call. Numbers are never reused for another meaning.
enum cowslip_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Done.
    COWSLIP_OK = 0,
    // The request makes no sense, or a required pointer is NULL.
    COWSLIP_USAGE = 1,
    // This kernel cannot do it.
    COWSLIP_UNSUPPORTED = 2,
    // This process is not allowed to do it.
    COWSLIP_DENIED = 3,
    // The process in question is gone.
    COWSLIP_VANISHED = 4,
    // There is not enough memory or address space.
    COWSLIP_OUT_OF_MEMORY = 5,
    // A resource of the call is still in use, or a callback stopped the call.
    COWSLIP_BUSY = 6,
    // The received or read data is damaged, or of another kind.
    COWSLIP_CORRUPT = 7,
    // A file cannot be read or written.
    COWSLIP_FILE = 8,
    // The kernel refused for another reason.
    COWSLIP_SYSTEM = 9,
    // A defect of the library: please report the text.
    COWSLIP_BUG = 10,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum cowslip_status cowslip_status;
#else
typedef int32_t cowslip_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The memory that an arena is made of.
enum cowslip_backing
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Transparent huge pages where the system gives them, else base pages.
    COWSLIP_BACKING_THP = 0,
    // Base pages.
    COWSLIP_BACKING_BASE = 1,
    // Pages of the hugetlb pool.
    COWSLIP_BACKING_HUGETLB = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum cowslip_backing cowslip_backing;
#else
typedef uint32_t cowslip_backing;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The place for memory that had addresses before.
enum cowslip_place
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Anywhere.
    COWSLIP_PLACE_ANYWHERE = 0,
    // At its former addresses, so that pointers into it stay valid.
    COWSLIP_PLACE_ORIGINAL = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum cowslip_place cowslip_place;
#else
typedef uint32_t cowslip_place;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Memory that can be frozen at one instant.
typedef struct cowslip_arena cowslip_arena;

// A private copy of a template, in this process.
typedef struct cowslip_clone cowslip_clone;

// The reason why a call failed.
typedef struct cowslip_error cowslip_error;

// The content of an arena at one instant.
typedef struct cowslip_frozen cowslip_frozen;

// A frozen arena that any process may map.
typedef struct cowslip_template cowslip_template;

// Options for a new arena.
typedef struct cowslip_arena_options {
    // sizeof(struct cowslip_arena_options).
    size_t size;
    // A cowslip_backing.
    uint32_t backing;
    // 1: freeze without userfaultfd even where it is available.
    uint32_t no_userfaultfd;
    // The start address, a multiple of 1 GiB; 0: anywhere.
    size_t address;
} cowslip_arena_options;

// A place that a restored program finds by name.
typedef struct cowslip_root {
    // UTF-8.
    const char *name;
    // Its address in the arena.
    const void *start;
    // Its length.
    size_t length;
} cowslip_root;

// Called now and then with the progress of long work, on the calling thread; a result other than 0 stops it
// (COWSLIP_BUSY).
typedef int (*cowslip_progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);

// Options for saving.
typedef struct cowslip_save_options {
    // sizeof(struct cowslip_save_options).
    size_t size;
    // An image in the same folder, of the same arenas: save only the differences from it. NULL: none.
    const char *parent;
    // "none", "lz4", "zstd" or "zstd:LEVEL"; NULL: none.
    const char *compression;
    // Threads that write; 0: one per processor, 4 to 16.
    size_t threads;
    // The places to find by name.
    const struct cowslip_root *roots;
    // Their number.
    size_t root_count;
    // NULL: no progress is reported.
    cowslip_progress progress;
    // Its first argument.
    void *context;
} cowslip_save_options;

// Options for restoring.
typedef struct cowslip_restore_options {
    // sizeof(struct cowslip_restore_options).
    size_t size;
    // The number of the arena in the image, from 0.
    uint32_t arena;
    // A cowslip_place.
    uint32_t place;
    // A cowslip_backing.
    uint32_t backing;
    // 1: return when all memory is present; 0: return at once, and read touched memory first.
    uint32_t eager;
    // Threads that read, at most 16; 0: one per processor.
    size_t threads;
    // Called during eager restores.
    cowslip_progress progress;
    // Its first argument.
    void *context;
    // The socket of a `cowslip serve` that must have the image. "": the file is read, even if the environment names a
    // server. NULL: the server that COWSLIP_SERVE names is asked, and the file is read if there is none or it does not
    // have the image.
    const char *via;
} cowslip_restore_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the interface that the library has: at least COWSLIP_ABI of the header, unless the library is older
// than the program.
uint32_t cowslip_abi(void);

// Reserves `capacity` bytes of address space, at most the machine's memory and swap. Memory is taken as it is touched.
cowslip_status cowslip_arena_new(uint64_t capacity,
                                 const struct cowslip_arena_options *options,
                                 struct cowslip_arena **arena,
                                 struct cowslip_error **error);

// Frees the handle. The arena and all its memory live until the last view of it is freed.
//
// Memory that was allocated from it must no longer be in use.
void cowslip_arena_free(struct cowslip_arena *arena);

// The arena's addresses.
cowslip_status cowslip_arena_range(const struct cowslip_arena *arena,
                                   void **start,
                                   size_t *length,
                                   struct cowslip_error **error);

// Hands out zeroed memory: whole pages, aligned to 2 MiB from that length on.
cowslip_status cowslip_alloc(const struct cowslip_arena *arena,
                             size_t length,
                             void **memory,
                             struct cowslip_error **error);

// Returns memory to the arena: `length` is the length that was passed to cowslip_alloc. COWSLIP_USAGE for memory that
// is not handed out, or not the arena's.
//
// The memory must no longer be in use.
cowslip_status cowslip_dealloc(const struct cowslip_arena *arena,
                               void *memory,
                               size_t length,
                               struct cowslip_error **error);

// Makes whole pages zeroes and returns their memory to the system; they stay handed out.
//
// No other thread may use the memory meanwhile.
cowslip_status cowslip_discard(const struct cowslip_arena *arena,
                               void *memory,
                               size_t length,
                               struct cowslip_error **error);

// The arena's counters as a JSON object of numbers; for cowslip_text_free.
cowslip_status cowslip_metrics_json(const struct cowslip_arena *arena,
                                    char **json,
                                    struct cowslip_error **error);

// The capabilities of this kernel with these privileges, tried out, as `cowslip doctor --json` prints them; for
// cowslip_text_free. It takes a fraction of a second.
cowslip_status cowslip_doctor_json(char **json,
                                   struct cowslip_error **error);

// Frees a text that the library handed out.
void cowslip_text_free(char *text);

// Lets `cowslip branch` copy this process, which runs under `cowslip run`, for `timeout_ms`: 0 returns at once if no
// command waits for it, -1 waits until `cowslip branch --release`. `name` may be NULL: the process is then found by
// its id alone.
//
// In each copy it returns the copy's number, 0 or more. In the program itself it returns -1, with errno.
//
// errno is EAGAIN when the time is up, ECANCELED after `--release`, EINTR when a signal handler ran, EBUSY while
// another thread is in this call, EINVAL if the name has other characters than letters, digits, '.', '_' and '-', is of
// digits alone or longer than 32, EPERM if the program filters its system calls, ENOSYS without `cowslip run`.
//
// A copy is like the child of fork(2): only the calling thread lives on in it.
int cowslip_branch_point(const char *name,
                         int timeout_ms);

// A descriptor that can be read (poll(2)) while a command waits for this process to reach its branch point, for
// programs that wait for other things too: they then call cowslip_branch_point(name, 0). They must not close the
// descriptor. -1 with errno if there is none.
int cowslip_branch_fd(const char *name);

// A line that says which operation failed, on which object, and why, without the advice. It lives as long as the
// error.
const char *cowslip_error_text(const struct cowslip_error *error);

// A remedy, or NULL if none is known. It lives as long as the error.
const char *cowslip_error_advice(const struct cowslip_error *error);

// The kernel's error number (errno.h), or 0 if the kernel did not refuse.
int cowslip_error_errno(const struct cowslip_error *error);

// Frees an error.
void cowslip_error_free(struct cowslip_error *error);

// fork(2) with these arenas: the child has their content at this instant; other arenas are missing in it. `*pid` is 0
// in the child. In the child of a program with threads only async-signal-safe functions may be called.
cowslip_status cowslip_fork(const struct cowslip_arena *const *arenas,
                            size_t count,
                            int *pid,
                            struct cowslip_error **error);

// Has every later fork() of this process take the arena along, including forks in libraries. A freeze that fails then
// leaves the arena's memory to the kernel.
//
// The library must not be unloaded.
cowslip_status cowslip_at_fork(const struct cowslip_arena *arena,
                               struct cowslip_error **error);

// Freezes the arena: its memory stays usable at the same addresses, and the view has its present content until the
// view is freed. Up to 64 views of an arena may exist, each of its own instant. While there may be no more (and,
// without userfaultfd or on hugetlb pages, during another view or a thaw) it waits, up to `timeout_ns`, and then
// returns COWSLIP_BUSY.
cowslip_status cowslip_freeze(const struct cowslip_arena *arena,
                              uint64_t timeout_ns,
                              struct cowslip_frozen **frozen,
                              struct cowslip_error **error);

// Does the first part of a freeze beside earlier views now, while other threads run: the next freeze takes less time.
cowslip_status cowslip_prepare_freeze(const struct cowslip_arena *arena,
                                      struct cowslip_error **error);

// Restores the arena's content from the freeze of `frozen`. All views stay. Memory allocated since then reads as
// zeroes; memory given back since then stays given back. No thread may use the arena's memory until this returns. If
// it fails, nothing has changed.
cowslip_status cowslip_roll_back(const struct cowslip_arena *arena,
                                 const struct cowslip_frozen *frozen,
                                 struct cowslip_error **error);

// The place where the view shows the arena's memory at `address`, for reading only, up to the end of the allocation
// there; NULL if `address` is not the arena's.
const void *cowslip_frozen_view(const struct cowslip_frozen *frozen,
                                const void *address);

// Ends the view; the arena thaws in the background.
void cowslip_frozen_free(struct cowslip_frozen *frozen);

// Saves views to a file, durably, while the program runs: all or nothing. The file's mode is 0600.
cowslip_status cowslip_save(const struct cowslip_frozen *const *frozen,
                            size_t count,
                            const char *file,
                            const struct cowslip_save_options *options,
                            struct cowslip_error **error);

// Reads all of an image, and of the images that it builds on, and checks it: COWSLIP_CORRUPT if a byte is wrong.
cowslip_status cowslip_verify(const char *file,
                              cowslip_progress progress,
                              void *context,
                              struct cowslip_error **error);

// Makes an arena with the content of an image. It may be used, frozen and saved at once. A damaged chunk raises SIGBUS
// at its first touch.
cowslip_status cowslip_restore(const char *file,
                               const struct cowslip_restore_options *options,
                               struct cowslip_arena **arena,
                               struct cowslip_error **error);

// Waits up to `timeout_ns` until all of a restored arena is present and independent of the file and of a server:
// COWSLIP_BUSY if that takes longer.
cowslip_status cowslip_restore_wait(const struct cowslip_arena *arena,
                                    uint64_t timeout_ns,
                                    struct cowslip_error **error);

// The present place of the memory that was saved under this name: COWSLIP_USAGE if there is none.
cowslip_status cowslip_root_find(const struct cowslip_arena *arena,
                                 const char *name,
                                 void **start,
                                 size_t *length,
                                 struct cowslip_error **error);

// Makes a template of a view. The view is freed, even on failure.
cowslip_status cowslip_template_new(struct cowslip_frozen *frozen,
                                    struct cowslip_template **template_,
                                    struct cowslip_error **error);

// Sends the template over a connected Unix socket to a process that calls cowslip_template_receive. It may be freed
// when the other side has confirmed that it has the template.
//
// `socket` must be open.
cowslip_status cowslip_template_send(const struct cowslip_template *template_,
                                     int socket,
                                     struct cowslip_error **error);

// Receives a template over a connected Unix socket, from a process that the caller trusts not to write to it.
//
// `socket` must be open.
cowslip_status cowslip_template_receive(int socket,
                                        struct cowslip_template **template_,
                                        struct cowslip_error **error);

// The template of one of an image's arenas, from the memory of the `cowslip serve` at the socket. Clones share the
// server's memory except for written pages: any number of processes hold one copy. The call waits for an image that is
// being loaded.
cowslip_status cowslip_template_via(const char *file,
                                    uint32_t arena,
                                    const char *socket,
                                    struct cowslip_template **template_,
                                    struct cowslip_error **error);

// The place of the memory that was saved under this name in the image of a template from cowslip_template_via, for
// cowslip_clone_at: COWSLIP_USAGE if there is none.
cowslip_status cowslip_template_root(const struct cowslip_template *template_,
                                     const char *file,
                                     const char *name,
                                     const void **start,
                                     size_t *length,
                                     struct cowslip_error **error);

// Frees the handle; clones stay.
void cowslip_template_free(struct cowslip_template *template_);

// Maps a private clone, at a cowslip_place.
cowslip_status cowslip_clone_new(const struct cowslip_template *template_,
                                 uint32_t place,
                                 struct cowslip_clone **clone,
                                 struct cowslip_error **error);

// The place of the arena's `address` in the clone, for reading and writing; NULL if the clone has nothing there.
void *cowslip_clone_at(const struct cowslip_clone *clone,
                       const void *address);

// Resets the clone to the template, in place: all writes are dropped.
//
// No other thread may use the clone meanwhile.
cowslip_status cowslip_clone_reset(struct cowslip_clone *clone, struct cowslip_error **error);

// Unmaps the clone.
//
// Its memory must no longer be in use.
void cowslip_clone_free(struct cowslip_clone *clone);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* COWSLIP_H */
