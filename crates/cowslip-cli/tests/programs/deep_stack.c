// Recurses as deep as it is told, a page a frame: the stack grows page by page.
#include <stdio.h>
#include <stdlib.h>

static int descend(int depth)
{
	volatile char frame[4096];
	frame[0] = (char)depth;
	return depth ? descend(depth - 1) + frame[0] : 0;
}

int main(int count, char **words)
{
	printf("%d\n", descend(count > 1 ? atoi(words[1]) : 0));
	return 0;
}
