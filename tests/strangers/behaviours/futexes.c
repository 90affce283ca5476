// Mutexes, condition variables, semaphores and barriers in memory that is far while threads sleep on them.
#include "behaviour.h"
#include <semaphore.h>
struct room { pthread_mutex_t mutex; pthread_cond_t condition; sem_t semaphore; volatile int turn; char rest[60000]; };
static struct room *rooms;
enum { ROOMS = 1000, THREADS = 4 };
static volatile long total;
static void *run(void *given) {
    long me = (long)given;
    for (int i = 0; i < ROOMS; i++) {
        struct room *room = &rooms[i];
        pthread_mutex_lock(&room->mutex);
        while (room->turn != me) pthread_cond_wait(&room->condition, &room->mutex);
        room->turn++;
        pthread_cond_broadcast(&room->condition);
        pthread_mutex_unlock(&room->mutex);
        sem_post(&room->semaphore);
        __sync_fetch_and_add(&total, 1);
    }
    return 0;
}
int main(void) {
    rooms = pages(ROOMS * sizeof *rooms);
    for (int i = 0; i < ROOMS; i++) {
        pthread_mutex_init(&rooms[i].mutex, 0);
        pthread_cond_init(&rooms[i].condition, 0);
        sem_init(&rooms[i].semaphore, 0, 0);
        memset(rooms[i].rest, i, sizeof rooms[i].rest);
    }
    pthread_t threads[THREADS];
    for (long k = THREADS - 1; k >= 0; k--) {
        pthread_create(&threads[k], 0, run, (void *)k);
        if (k == 2) thrash();
    }
    thrash();
    for (int i = 0; i < ROOMS; i++)
        for (int k = 0; k < THREADS; k++) sem_wait(&rooms[i].semaphore);
    for (int k = 0; k < THREADS; k++) pthread_join(threads[k], 0);
    size_t bad = 0;
    for (int i = 0; i < ROOMS; i++) bad += rooms[i].turn != THREADS || rooms[i].rest[1234] != (char)i;
    printf("%ld turns\n", total);
    check("rooms", bad);
    return verdict();
}
