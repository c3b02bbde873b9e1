/* Loses a block of memory. */
#include <stdlib.h>
#include <string.h>

int main(void)
{
	char *volatile block = malloc(1000);

	memset(block, 1, 1000);
	block = NULL;
	return 0;
}
