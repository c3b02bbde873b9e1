// A socket as that of a program at its branch point, which every user may connect to: says what it is told.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

// impostor FOLDER NAME
int main(int argc, char **argv) {
  if (argc != 3) return 2;
  int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  snprintf(at.sun_path, sizeof at.sun_path, "%s/%d-%s", argv[1], getpid(), argv[2]);
  umask(0);
  if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 8)) {
    perror("listen");
    return 1;
  }
  puts("listens");
  fflush(stdout);
  for (;;) {
    int client = accept(listener, NULL, NULL);
    char text[256];
    ssize_t length;
    while (client >= 0 && (length = read(client, text, sizeof text - 1)) > 0) {
      text[length] = 0;
      printf("told %s\n", text);
      fflush(stdout);
      // "The supervisor is there".
      if (write(client, "Y", 1) < 0) break;
    }
    close(client);
  }
}
