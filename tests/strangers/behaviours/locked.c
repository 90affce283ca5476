// 300 MiB of which 200 are locked.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
int main(){size_t n=300<<20;char*p=mmap(0,n,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);for(size_t i=0;i<n;i+=64)p[i]=i;printf("mlock %d\n",mlock(p,200<<20));fflush(stdout);for(size_t i=0;i<n;i+=64)if(p[i]!=(char)i)return 1;puts("right");return 0;}
