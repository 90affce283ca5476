#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    unsigned long sum = 0;
    char *held[200];
    for (int i = 0; i < 200; i++) memset(held[i] = malloc(1 << 20), i, 1 << 20);
    for (int i = 0; i < 200; i++) for (int k = 0; k < 1 << 20; k += 64) sum += (unsigned char)held[i][k];
    for (int i = 0; i < 200; i++) free(held[i]);
    printf("%lu\n", sum);
}
