/* Frees what was never allocated: has to end with a message. */
#include <hiroma.h>

int main(void)
{
	static char ordinary[64];

	if (teramalloc(100) == NULL)
		return 1;
	terafree(ordinary);
	return 0;
}
