// 400 MiB become read-only in several ways, and are read again.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
/* ro HOW: fills 400 MiB, makes it read-only (1: at once, 2: in 4 MiB pieces, 3: PROT_NONE in pieces before), reads it again */
int main(int c,char**v){int how=atoi(v[1]);size_t n=400ul<<20,s=4<<20;char*p=mmap(0,n,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);for(size_t i=0;i<n;i+=8)*(size_t*)(p+i)=i*0x9ff51afd7ed558ccull;
if(how==1)mprotect(p,n,PROT_READ);
if(how==2)for(size_t o=0;o<n;o+=2*s)mprotect(p+o,s,PROT_READ);
if(how==3){for(size_t o=0;o<n;o+=2*s)mprotect(p+o,s,PROT_NONE);for(size_t o=0;o<n;o+=2*s)mprotect(p+o,s,PROT_READ);}
if(how==4){for(size_t o=0;o<n;o+=2*s)mprotect(p+o,s,PROT_NONE);for(size_t o=0;o<n;o+=2*s)mprotect(p+o,s,PROT_READ|PROT_WRITE);}
for(int r=0;r<2;r++)for(size_t i=0;i<n;i+=8){if(*(size_t*)(p+i)!=i*0x9ff51afd7ed558ccull){printf("wrong at %zx\n",i);return 1;}if(i%(1<<25)==0)fprintf(stderr,"%zu ",i>>20);}
printf("right\n");return 0;}
