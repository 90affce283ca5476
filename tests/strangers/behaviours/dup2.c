// Shells and daemons: dup2 onto low numbers, where the descriptors of others may be.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
int main(){ size_t n=200ul<<20; unsigned long*b=mmap(0,n,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0); for(size_t i=0;i<n/8;i++) b[i]=i+1;
 int f=open("./userfile",O_RDWR|O_CREAT|O_TRUNC,0600); for(int i=3;i<20;i++) if(i!=f) dup2(f,i); long z=0; for(size_t i=0;i<n/8;i+=512) if(!b[i]) z++; printf("%ld zero\n",z); return 0; }
