/*
 * Cowslip for C and C++: memory that is frozen, forked, saved and restored in microseconds, on huge pages.
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

// The version of this interface. It grows with every function that is added; nothing is taken away while the
// library is libcowslip.so.0.
#define COWSLIP_ABI 2

// How a call ended. Numbers are never used again for something else.
enum cowslip_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Done.
    COWSLIP_OK = 0,
    // The request makes no sense, or a pointer that must not be NULL was.
    COWSLIP_USAGE = 1,
    // This kernel cannot do it.
    COWSLIP_UNSUPPORTED = 2,
    // This process may not do it.
    COWSLIP_DENIED = 3,
    // The process asked about is gone.
    COWSLIP_VANISHED = 4,
    // There is not enough memory or address space.
    COWSLIP_OUT_OF_MEMORY = 5,
    // Somebody still uses what would have to change, or a callback broke it off.
    COWSLIP_BUSY = 6,
    // What was received or read is not what it should be.
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

// What the memory of an arena is made of.
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

// Where memory goes that had addresses before.
enum cowslip_place
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Wherever there is room.
    COWSLIP_PLACE_ANYWHERE = 0,
    // At the addresses that it had, so that pointers into it stay right.
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

// Why a call failed.
typedef struct cowslip_error cowslip_error;

// What an arena held at one instant.
typedef struct cowslip_frozen cowslip_frozen;

// A frozen arena that any process may map.
typedef struct cowslip_template cowslip_template;

// How to make an arena.
typedef struct cowslip_arena_options {
    // sizeof(struct cowslip_arena_options).
    size_t size;
    // A cowslip_backing.
    uint32_t backing;
    // 1: freeze without userfaultfd even where it is to be had.
    uint32_t no_userfaultfd;
    // Where it begins, a multiple of 1 GiB; 0: anywhere.
    size_t address;
} cowslip_arena_options;

// A place that a restored program looks for by name.
typedef struct cowslip_root {
    // UTF-8.
    const char *name;
    // Its address in the arena.
    const void *start;
    // Its length.
    size_t length;
} cowslip_root;

// Is told how far long work is, now and then, on the thread that called; anything but 0 breaks it off (COWSLIP_BUSY).
typedef int (*cowslip_progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);

// How to save.
typedef struct cowslip_save_options {
    // sizeof(struct cowslip_save_options).
    size_t size;
    // An image in the same folder, of the same arenas: hold only what differs from it. NULL: none.
    const char *parent;
    // "none", "lz4", "zstd" or "zstd:LEVEL"; NULL: none.
    const char *compression;
    // Threads that write; 0: as the machine has processors.
    size_t threads;
    // The places to be found by name.
    const struct cowslip_root *roots;
    // How many.
    size_t root_count;
    // NULL: nobody is told.
    cowslip_progress progress;
    // Its first argument.
    void *context;
} cowslip_save_options;

// How to restore.
typedef struct cowslip_restore_options {
    // sizeof(struct cowslip_restore_options).
    size_t size;
    // Which arena of the image, from 0.
    uint32_t arena;
    // A cowslip_place.
    uint32_t place;
    // A cowslip_backing.
    uint32_t backing;
    // 1: return when all of it is there; 0: at once, and bring in first what is touched.
    uint32_t eager;
    // Threads that read; 0: as the machine has processors.
    size_t threads;
    // Is told of eager restores.
    cowslip_progress progress;
    // Its first argument.
    void *context;
    // The socket of a `cowslip serve` that must have the image. "": the file is read, whatever the environment says.
    // NULL: the one that COWSLIP_SERVE names is asked, and the file is read if there is none or it does not have the
    // image.
    const char *via;
} cowslip_restore_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the interface that the library has: at least COWSLIP_ABI of the header, or the library is older
// than the program.
uint32_t cowslip_abi(void);

// Reserves `capacity` bytes of address space, at most the machine's memory and swap. Memory is taken as it is touched.
cowslip_status cowslip_arena_new(uint64_t capacity,
                                 const struct cowslip_arena_options *options,
                                 struct cowslip_arena **arena,
                                 struct cowslip_error **error);

// Frees the handle. The arena and all memory of it end with the last view of it.
//
// Nobody uses memory that was allocated from it any more.
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

// Gives memory back that cowslip_alloc handed out: `length` as it was asked for. COWSLIP_USAGE for memory that is not
// handed out, or not the arena's.
//
// Nobody uses the memory any more.
cowslip_status cowslip_dealloc(const struct cowslip_arena *arena,
                               void *memory,
                               size_t length,
                               struct cowslip_error **error);

// Makes whole pages zeroes and gives their memory back to the system; they stay handed out.
//
// Nobody else uses the memory meanwhile.
cowslip_status cowslip_discard(const struct cowslip_arena *arena,
                               void *memory,
                               size_t length,
                               struct cowslip_error **error);

// The arena's counters as a JSON object of numbers; for cowslip_text_free.
cowslip_status cowslip_metrics_json(const struct cowslip_arena *arena,
                                    char **json,
                                    struct cowslip_error **error);

// What this kernel and these privileges allow, tried out, as `cowslip doctor --json` says it; for
// cowslip_text_free. It takes a fraction of a second.
cowslip_status cowslip_doctor_json(char **json, struct cowslip_error **error);

// Frees a text that the library handed out.
void cowslip_text_free(char *text);

// Lets `cowslip branch` copy this process, which runs under `cowslip run`, for `timeout_ms`: 0 looks whether somebody
// waits for it, -1 waits until `cowslip branch --release` has it go on. `name` may be NULL: then it is found by its
// process id alone.
//
// In each copy it returns which one that is, 0 or more. In the program itself it returns -1, with errno: EAGAIN when
// the time is up, ECANCELED when it was told to go on, EINTR when a signal handler ran, EBUSY while another thread is
// in this call, EINVAL if the name has other characters than letters, digits, '.', '_' and '-', is of digits alone or
// longer than 32, EPERM if the program filters its system calls, ENOSYS without `cowslip run`.
//
// A copy is as the child of fork(2): only the calling thread lives on in it.
int cowslip_branch_point(const char *name,
                         int timeout_ms);

// A descriptor that can be read (poll(2)) while somebody waits for this process to come to its branch point, for
// programs that wait for other things too: they call cowslip_branch_point(name, 0) then, and do not close it. -1 with
// errno if there is none.
int cowslip_branch_fd(const char *name);

// What failed, on what, and why, in a line, without the advice; as long as the error lives.
const char *cowslip_error_text(const struct cowslip_error *error);

// What to do about it, or NULL if that is not known; as long as the error lives.
const char *cowslip_error_advice(const struct cowslip_error *error);

// The kernel's error number (errno.h), or 0 if it was not the kernel who refused.
int cowslip_error_errno(const struct cowslip_error *error);

// Frees an error.
void cowslip_error_free(struct cowslip_error *error);

// fork(2) with these arenas: the child has their content at this instant, other arenas are missing in it. `*pid` is 0
// in the child. In the child of a program with threads only async-signal-safe functions may be called.
cowslip_status cowslip_fork(const struct cowslip_arena *const *arenas,
                            size_t count,
                            int *pid,
                            struct cowslip_error **error);

// Has every later fork() of this process take the arena along, whoever calls it. A freeze that fails then leaves the
// arena's memory to the kernel.
//
// The library is not unloaded.
cowslip_status cowslip_at_fork(const struct cowslip_arena *arena,
                               struct cowslip_error **error);

// Freezes the arena: its memory goes on under the same addresses, its content now is in the view until that is freed.
// Up to 64 views of it may live, each of its own instant. Where there may be no more (and, without userfaultfd or on
// hugetlb pages, while there is one, or a thaw goes on) it waits, up to `timeout_ns`, and is COWSLIP_BUSY then.
cowslip_status cowslip_freeze(const struct cowslip_arena *arena,
                              uint64_t timeout_ns,
                              struct cowslip_frozen **frozen,
                              struct cowslip_error **error);

// Does now, while other threads go on, what a freeze beside earlier views would begin with: the freeze after it takes less.
cowslip_status cowslip_prepare_freeze(const struct cowslip_arena *arena,
                                      struct cowslip_error **error);

// Restores the arena's content of the freeze of `frozen`. All views stay. Memory allocated since then reads as zeroes, memory
// given back since then stays given back. No thread may use the arena's memory until this returns. On an error all is
// as before.
cowslip_status cowslip_roll_back(const struct cowslip_arena *arena,
                                 const struct cowslip_frozen *frozen,
                                 struct cowslip_error **error);

// Where the view shows what the arena has at `address`, to be read only, up to the end of what was allocated there;
// NULL if `address` is not the arena's.
const void *cowslip_frozen_view(const struct cowslip_frozen *frozen,
                                const void *address);

// Ends the view; the arena thaws in the background.
void cowslip_frozen_free(struct cowslip_frozen *frozen);

// Saves views to a file, durably, while the program runs on: all or nothing. The file's mode is 0600.
cowslip_status cowslip_save(const struct cowslip_frozen *const *frozen,
                            size_t count,
                            const char *file,
                            const struct cowslip_save_options *options,
                            struct cowslip_error **error);

// Reads all of an image, and of those that it builds on, and checks it: COWSLIP_CORRUPT if a byte is wrong.
cowslip_status cowslip_verify(const char *file,
                              cowslip_progress progress,
                              void *context,
                              struct cowslip_error **error);

// Makes an arena with the content of an image. It may be used, frozen and saved at once. A chunk that turns out to be
// damaged is a SIGBUS at its first touch.
cowslip_status cowslip_restore(const char *file,
                               const struct cowslip_restore_options *options,
                               struct cowslip_arena **arena,
                               struct cowslip_error **error);

// Waits up to `timeout_ns` until all of a restored arena is there, and free of the file and of a server: COWSLIP_BUSY if that takes
// longer.
cowslip_status cowslip_restore_wait(const struct cowslip_arena *arena,
                                    uint64_t timeout_ns,
                                    struct cowslip_error **error);

// Where the place is now that was saved under this name: COWSLIP_USAGE if there is none.
cowslip_status cowslip_root_find(const struct cowslip_arena *arena,
                                 const char *name,
                                 void **start,
                                 size_t *length,
                                 struct cowslip_error **error);

// Makes a template of a view, which is freed by that, also if it fails.
cowslip_status cowslip_template_new(struct cowslip_frozen *frozen,
                                    struct cowslip_template **template_,
                                    struct cowslip_error **error);

// Sends the template over a connected Unix socket to a process that calls cowslip_template_receive. It may be freed
// when the other side says that it has it.
//
// `socket` is open.
cowslip_status cowslip_template_send(const struct cowslip_template *template_,
                                     int socket,
                                     struct cowslip_error **error);

// Receives a template over a connected Unix socket, from a process that the caller trusts not to write to it.
//
// `socket` is open.
cowslip_status cowslip_template_receive(int socket,
                                        struct cowslip_template **template_,
                                        struct cowslip_error **error);

// The template of one of an image's arenas that the `cowslip serve` at the socket has in memory. Clones of it stay on the
// server's memory but for what is written: any number of processes hold one copy. An image that is being loaded is
// waited for.
cowslip_status cowslip_template_via(const char *file,
                                    uint32_t arena,
                                    const char *socket,
                                    struct cowslip_template **template_,
                                    struct cowslip_error **error);

// Where the image of a template from cowslip_template_via had the place that was saved under this name, for
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

// Where the clone has what the arena has at `address`, to be read and written; NULL if the clone has nothing there.
void *cowslip_clone_at(const struct cowslip_clone *clone,
                       const void *address);

// Takes the clone back to the template, in place: what was written is dropped.
//
// Nobody uses the clone meanwhile.
cowslip_status cowslip_clone_reset(struct cowslip_clone *clone, struct cowslip_error **error);

// Unmaps the clone.
//
// Nobody uses its memory any more.
void cowslip_clone_free(struct cowslip_clone *clone);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* COWSLIP_H */
