// Joins words to one text, with its end known or looked for each time: append known|sought WORDS.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) static char *join(char *end, int is_sought) {
  if (is_sought)
    end += strlen(end);
  memcpy(end, "word ", 6);
  return end + 5;
}

int main(int argc, char **argv) {
  int is_sought = argc > 1 && !strcmp(argv[1], "sought");
  long words = argc > 2 ? atol(argv[2]) : 10000;
  char *text = calloc(words + 1, 5);
  if (!text)
    return 1;
  for (int again = 0; again < 20; again++) {
    char *end = text;
    *text = 0;
    for (long i = 0; i < words; i++) {
      char *next = join(is_sought ? text : end, is_sought);
      end = next;
    }
  }
  printf("%zu\n", strlen(text));
  return 0;
}
