// Pages are spliced into a pipe, memory is short, and the pipe is read: it must hold what was there.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/uio.h>
int main(int c,char**v){
  int N=c>1?atoi(v[1]):16; int rnd=c>2;
  size_t big=300ul<<20; 
  unsigned long *a=mmap(0,8<<20,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
  for(size_t i=0;i<(8<<20)/8;i++) a[i]=0xA000000000000000ul+i*2654435761ul;
  unsigned char *b=mmap(0,big,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
  if(rnd) madvise(a,8<<20,MADV_RANDOM), madvise(b,big,MADV_RANDOM);
  unsigned long x=88172645463325252ul;
  // once out and in again, so that it comes in small pieces
  for(size_t i=0;i<big/4096*2;i++){ x^=x<<13;x^=x>>7;x^=x<<17; unsigned long *w=(unsigned long*)(b+x%(big/4096)*4096); for(int k=0;k<512;k++) w[k]=x*k; }
  volatile unsigned long s=a[0];
  int p[2]; pipe(p); fcntl(p[1],F_SETPIPE_SZ,1<<20);
  struct iovec io={a,N*4096}; long n=vmsplice(p[1],&io,1,0); 
  printf("vmspliced %ld\n",n);
  for(int r=0;r<2;r++) for(size_t i=0;i<big/4096*2;i++){ x^=x<<13;x^=x>>7;x^=x<<17; unsigned long *w=(unsigned long*)(b+x%(big/4096)*4096); for(int k=0;k<512;k++) w[k]=x*k; }
  unsigned long *r=malloc(N*4096); size_t got=0; while(got<(size_t)n){ long k=read(p[0],(char*)r+got,n-got); if(k<=0)break; got+=k;}
  int bad=0; for(int i=0;i<N*512;i++){ unsigned long w=0xA000000000000000ul+i*2654435761ul; if(r[i]!=w) bad++;}
  printf("pipe: %d of %d words wrong; first %lx\n",bad,N*512,r[0]);
  bad=0; for(int i=0;i<N*512;i++) if(a[i]!=0xA000000000000000ul+i*2654435761ul) bad++;
  printf("memory: %d wrong\n",bad);
  return bad!=0;}
