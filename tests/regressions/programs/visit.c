// Maps a file and reads a byte of each of its pages, in no order that the kernel could read ahead for: visit FILE.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

int main(int argc, char **argv) {
  int file = argc > 1 ? open(argv[1], O_RDONLY) : -1;
  struct stat about;
  if (file < 0 || fstat(file, &about))
    return 1;
  char *content = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, file, 0);
  if (content == MAP_FAILED || madvise(content, (size_t)about.st_size, MADV_RANDOM))
    return 1;
  size_t pages = (size_t)about.st_size / 4096, sum = 0;
  for (size_t i = 0; i < pages; i++)
    sum += (unsigned char)content[i * 7919 % pages * 4096];
  printf("%zu\n", sum);
  return 0;
}
